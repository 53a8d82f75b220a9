#!/usr/bin/env python3
"""Two models on Ray Serve, whose replicas are where their weights are.

ray_serve.py --hoistd build/bin/hoistd   makes three of Ray's nodes on this
                                         machine, each with a hoistd of its own
                                         on an emulated device
ray_serve.py --address auto              takes three nodes of a cluster that
                                         has a hoistd on each, and hoistctl

It needs `pip install numpy 'ray[serve]'`. In turn

- both models are loaded, each on two of the nodes, and served there;
- "red" is brought to a third node by one that has it, and served there too;
- "blue" grows under many requests: its new replica gets the weights from a node
  that has them as it starts, wherever Serve has put it;
- "red" changes: other weights come beside the old ones, the replicas are
  replaced while requests go on, and the old weights are forgotten.

Each answer is compared with what the weights give in this process.
Exit status: 0 if all were right, else 1.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Iterator

import surroundings

surroundings.need("numpy", "ray")
surroundings.find_hoist()
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Seconds until Serve hears that an app has much to do.
os.environ.setdefault(
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S", "0.5")

import hoist  # noqa: E402
import hoist.ray  # noqa: E402
import numpy as np  # noqa: E402
import ray  # noqa: E402
from ray import serve  # noqa: E402

logging.getLogger("ray.serve").setLevel(logging.ERROR)

LAYERS, WIDTH = 4, 512
MIB = 1 << 20
# So small that new replicas have room beside those that they replace.
CPUS = 0.1


# --- A model: its weights, and what one does with them.


def weights(seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a file would have: a group a layer."""
    random = np.random.default_rng(seed)
    for layer in range(LAYERS):
        weight = random.standard_normal((WIDTH, WIDTH), np.float32) / 20
        yield f"layers.{layer}", {
            f"layers.{layer}.weight": weight,
            f"layers.{layer}.bias": random.standard_normal(WIDTH, np.float32)}


def answer(asked: int, layers: Iterator[tuple[str, Any]]) -> float:
    """By each layer's name and tensors."""
    x = np.full(WIDTH, asked, np.float32)
    for name, tensors in layers:
        x = np.tanh(tensors[f"{name}.weight"] @ x + tensors[f"{name}.bias"])
    return float(x[0])


def truth(seed: int, asked: int) -> float:
    """The answer, by weights that no hoistd has had."""
    return answer(asked, weights(seed))


class Replica:
    """One of Serve's: it owns no weights."""

    def __init__(self, model: str) -> None:
        self._node = ray.get_runtime_context().get_node_id()
        # If they are here, nothing moves.
        self._brought = hoist.ray.replicate(
            model, nodes=[self._node]).sent_bytes
        self._session = hoist.connect(name=f"replica of {model}")
        self._model = self._session.model(model)

    def __call__(self, asked: int) -> dict[str, Any]:
        return {"answer": answer(asked, self._staged()),
                "model": self._model.name, "node": self._node,
                "brought": self._brought}

    def _staged(self) -> Iterator[tuple[str, Any]]:
        for group in self._model:
            with self._session.stage(group) as lease:
                yield group.name, {name: lease[name].numpy()
                                   for name in lease}


# --- What an operator does with it.


def deploy(app: str, model: str, replicas: int) -> Any:
    """Serves a model on the nodes that have it; again, with another model or
    number: replicas are replaced, new ones first, and requests go on. Returns
    a handle."""
    return run(app, model, replicas, num_replicas=replicas,
               max_surge_percent=100, ray_actor_options={
                   "num_cpus": CPUS, **hoist.ray.actor_options(model)})


def deploy_growing(app: str, model: str, least: int, most: int) -> Any:
    """Serves a model as many times as requests ask for, once a node: first on
    nodes that have it, then on others. No replica is replaced for that."""
    return run(app, model, least, max_replicas_per_node=1, ray_actor_options={
        "num_cpus": CPUS, **hoist.ray.actor_options(model, "soft")},
        autoscaling_config={
            "min_replicas": least, "max_replicas": most,
            "target_ongoing_requests": 1, "upscale_delay_s": 0.5})


def run(app: str, model: str, replicas: int, **options: Any) -> Any:
    """A handle, once there are so many replicas, and no others."""
    deployment = serve.deployment(Replica).options(name="Replica", **options)
    handle = serve.run(deployment.bind(model), name=app, route_prefix=None)
    settle(app, replicas)
    return handle


def settle(app: str, replicas: int, seconds: float = 120) -> None:
    """Waits until the app has its replicas, and those alone."""
    end = time.monotonic() + seconds
    while True:
        told = serve.status().applications[app]
        states = [dict(one.replica_states)
                  for one in told.deployments.values()]
        if told.status == "RUNNING" and states == [{"RUNNING": replicas}]:
            return
        if time.monotonic() > end:
            raise TimeoutError(
                f"{app} has not settled in {seconds:g} s: {told}")
        time.sleep(0.1)


class Asking:
    """Asks an app all the time, from threads; counts who answered what."""

    def __init__(self, handle: Any, seeds: dict[str, int],
                 threads: int = 2) -> None:
        self._handle = handle
        self._truths = {model: [truth(seed, asked) for asked in range(8)]
                        for model, seed in seeds.items()}
        self._end = threading.Event()
        self._lock = threading.Lock()
        self.by_model: collections.Counter[str] = collections.Counter()
        self.brought: dict[str, int] = {}  # Bytes, as a replica began; by node.
        self.wrong: list[Any] = []
        self._threads = [threading.Thread(target=self._work)
                         for _ in range(threads)]

    def ask(self, asked: int) -> None:
        """Once."""
        told = None
        try:
            told = self._handle.remote(asked).result(timeout_s=60)
            right = told["answer"] == self._truths[told["model"]][asked]
        except Exception as error:  # noqa: BLE001 - it is counted.
            told, right = error, False
        with self._lock:
            if not right:
                self.wrong.append(told)
                return
            self.by_model[told["model"]] += 1
            self.brought[told["node"]] = told["brought"]

    def meet(self, nodes: int, seconds: float = 60) -> None:
        """Until so many nodes have answered, or something is wrong."""
        end = time.monotonic() + seconds
        asked = 0
        while (asked < 32 or len(self.brought) < nodes) and not self.wrong:
            self.ask(asked % 8)
            asked += 1
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self.brought)} of {nodes} nodes "
                                   f"have answered in {seconds:g} s")

    def _work(self) -> None:
        asked = 0
        while not self._end.is_set():
            self.ask(asked % 8)
            asked += 1

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def change(app: str, old: str, new: str, replicas: int,
           source: Callable[[], Any]) -> dict[str, hoist.HoistError]:
    """Other weights for an app that goes on; which nodes still have the old
    ones, and why."""
    # Beside the old ones, on the same nodes: one of them calls the source.
    nodes = sorted({row["node"] for row in hoist.ray.where(old)})
    hoist.ray.load(source, new, nodes=nodes, source_node=nodes[0])
    deploy(app, new, replicas)
    # Who still answers with the old ones has them whole until then.
    return hoist.ray.forget(old, deadline=60)


# --- Three nodes on one machine.


@contextlib.contextmanager
def three_nodes(hoistd: str) -> Iterator[str]:
    """The address of a cluster that ends with this."""
    from ray.cluster_utils import Cluster
    ctl = os.environ.get("HOIST_CTL") or os.path.join(
        os.path.dirname(os.path.abspath(hoistd)), "hoistctl")
    with contextlib.ExitStack() as stack:
        cluster = Cluster()
        stack.callback(cluster.shutdown)
        for _ in range(3):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            socket = start_hoistd(hoistd, folder, stack)
            cluster.add_node(num_cpus=2, object_store_memory=80 * MIB,
                             env_vars={"HOIST_SOCKET": socket,
                                       "HOIST_CTL": ctl})
        cluster.wait_for_nodes()
        yield cluster.address


def start_hoistd(program: str, folder: str,
                 stack: contextlib.ExitStack) -> str:
    """Its socket, once it answers."""
    socket = os.path.join(folder, "hoistd.sock")
    sets = {"server.socket": socket,
            "server.grpc_socket": os.path.join(folder, "hoistd.grpc.sock"),
            "device.backend": "emulated", "device.pool": "16MiB",
            "device.slab": "2MiB", "host.pool": "64MiB"}
    words = [word for key, value in sets.items()
             for word in ("--set", f"{key}={value}")]
    log = stack.enter_context(open(os.path.join(folder, "log"), "wb"))
    process = subprocess.Popen(
        [program, "--user", *words], stdout=log, stderr=log)

    def stop() -> None:
        process.terminate()
        process.wait()

    stack.callback(stop)
    try:
        hoist.connect(socket, connect_deadline=30).close()
    except hoist.HoistError as error:
        sys.exit(f"{program} does not answer: {error}\n"
                 + pathlib.Path(folder, "log").read_text()[-2000:])
    return socket


# --- The example.


class Story:
    """What happens, one step after another, and what was wrong."""

    def __init__(self, nodes: list[str]) -> None:
        self._nodes = nodes
        self.wrong = 0

    def _name(self, node: str) -> str:
        return f"node {self._nodes.index(node)}"

    def served(self, handle: Any, seeds: dict[str, int], nodes: int) -> None:
        """Asks until so many nodes have answered, and tells which."""
        asking = Asking(handle, seeds)
        asking.meet(nodes)
        self._told(asking)

    def _told(self, asking: Asking) -> None:
        models = ", ".join(f"{count} by {model}" for model, count
                           in sorted(asking.by_model.items()))
        nodes = ", ".join(sorted(map(self._name, asking.brought)))
        print(f"  answers: {models}; from {nodes}; "
              f"{len(asking.wrong)} wrong")
        for node, sent in asking.brought.items():
            if sent:
                print(f"  the replica on {self._name(node)} brought "
                      f"{sent / MIB:.1f} MiB from a node that had them")
        for one in asking.wrong[:3]:
            print(f"  wrong: {one}")
        self.wrong += len(asking.wrong)

    def _moved(self, report: hoist.ray.Report, read: str = "read") -> None:
        where = ", ".join(map(self._name, report.nodes))
        print(f"  {report.model}: {report.read_bytes / MIB:.1f} MiB {read}, "
              f"{report.sent_bytes / MIB:.1f} MiB sent, now on {where}")

    def tell(self) -> None:
        first, second, third = self._nodes
        print("load, and serve where the weights are")
        self._moved(hoist.ray.load(lambda: weights(1), "red",
                                   nodes=[first, second], source_node=first))
        self._moved(hoist.ray.load(lambda: weights(2), "blue",
                                   nodes=[second, third], source_node=third))
        red = deploy("red", "red", 2)
        self.served(red, {"red": 1}, 2)
        blue = deploy_growing("blue", "blue", 2, 3)
        self.served(blue, {"blue": 2}, 2)

        print("scale red up: its weights come from a node that has them")
        self._moved(hoist.ray.replicate("red", nodes=[third]),
                    "of a node that has them")
        red = deploy("red", "red", 3)
        self.served(red, {"red": 1}, 3)

        print("blue grows by itself: a replica brings its weights as it starts")
        with Asking(blue, {"blue": 2}, threads=6):
            settle("blue", 3)
        self.served(blue, {"blue": 2}, 3)

        print("change red while requests go on")
        with Asking(red, {"red": 1, "red-2": 3}) as asking:
            left = change("red", "red", "red-2", 3, lambda: weights(3))
        self._told(asking)
        self.served(red, {"red-2": 3}, 3)
        has = sorted({row["name"] for row in hoist.ray.models(self._nodes)})
        print(f"  models now: {', '.join(has)}")
        self.wrong += len(left)
        for node, error in left.items():
            print(f"  {self._name(node)} keeps the old ones: {error}")


def forget_all(nodes: list[str]) -> None:
    """Leaves the nodes as they were, and others' apps alone."""
    for app in set(serve.status().applications) & {"red", "blue"}:
        serve.delete(app)
    for model in ("red", "red-2", "blue"):
        hoist.ray.forget(model, nodes=nodes, deadline=30)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--hoistd", help="makes three nodes with this program")
    where.add_argument("--address", help="of a cluster that is there")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        address = arguments.address or stack.enter_context(
            three_nodes(arguments.hoistd))
        ray.init(address=address, log_to_driver=False, logging_level="error")
        stack.callback(ray.shutdown)
        nodes = sorted(node["NodeID"] for node in ray.nodes()
                       if node["Alive"])[:3]
        if len(nodes) < 3:
            sys.exit(f"the cluster has {len(nodes)} nodes, and this needs 3")
        # Handles ask here; for HTTP leave this out, and give a route_prefix.
        serve.start(proxy_location="Disabled",
                    logging_config={"log_level": "ERROR"})
        stack.callback(forget_all, nodes)
        story = Story(nodes)
        story.tell()
        print("all answers were right" if not story.wrong else
              f"{story.wrong} answers were wrong")
        return 1 if story.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
