"""What one user's attacks cost another: refused or not, and the other's stages.

bench_users.py HOISTD [--tries 300] [--stages 400]; needs HOIST_LIBRARY,
PYTHONPATH, NumPy and root, whose children become other users. For each attack a
hoistd of its own; EVIL tries it over and over until OTHER, who stages and
releases a group of 1 MiB by message, is done. OTHER is measured before and
meanwhile.
"""

import argparse
import os
import pathlib
import select
import signal
import socket
import sys
import time

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../support"))

import hoist  # noqa: E402
import numpy as np  # noqa: E402
from as_user import start_as  # noqa: E402
from real_daemon import MIB, RealDaemon, write_safetensors  # noqa: E402

EVIL, OTHER = 54321, 54322


def header_file(path, tensors):
    header = ",".join(
        f'"{n}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
        for n in range(tensors))
    header = f"{{{header}}}".encode()
    pathlib.Path(path).write_bytes(len(header).to_bytes(8, "little") + header)


class Attacks:
    """Each method is one try; what it took it keeps."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.kept = []
        self.session = None
        self.count = 0

    def files(self):
        folder = self.daemon.folder.name
        write_safetensors(f"{folder}/one.safetensors",
                          {"w": ("U8", [4096], bytes(4096))})
        for number in range(400):
            write_safetensors(f"{folder}/f{number}.safetensors",
                              {"w": ("U8", [4096], bytes(4096))})
        header_file(f"{folder}/tensors.safetensors", 20_000)
        header_file(f"{folder}/huge.safetensors", 600_000)

    def use(self):
        if self.session is None:
            self.session = hoist.connect(self.daemon.socket)
        self.count += 1
        return self.session

    def register(self, name):
        self.use().register(f"{self.daemon.folder.name}/{name}.safetensors",
                            f"m{self.count}")

    def sessions(self):
        self.kept.append(hoist.connect(self.daemon.socket))

    def silent_connections(self):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.connect(self.daemon.socket)
        # Its own limit of descriptors is not what counts.
        self.kept = [*self.kept[-400:], one]

    def models_of_one_file(self):
        self.register("one")

    def models_of_many_files(self):
        self.register(f"f{self.count % 400}")

    def headers_kept(self):
        self.register("tensors")

    def huge_headers(self):
        self.register("huge")

    def published(self):
        self.use().publish("hoard", f"g{self.count}",
                           {"w": np.full(MIB, self.count % 251, np.uint8)},
                           deadline=0.1)

    def leases(self):
        session = self.use()
        model = session.publish("all", f"g{self.count}",
                                {"w": np.full(MIB, self.count % 251,
                                              np.uint8)}, deadline=0.1)
        self.kept.append(session.stage(model[f"g{self.count}"], deadline=0.1))

    def plans(self):
        session = self.use()
        model = session.publish(f"m{self.count}", "g",
                                {"w": np.zeros(4096, np.uint8)}, deadline=0.1)
        self.kept.append(session.set_plan(model, order=list(model)))

    def stage_storm(self):
        session = self.use()
        if self.count == 1:
            session.publish("storm", "g", {"w": np.zeros(MIB, np.uint8)})
        with session.stage(session.model("storm")["g"], deadline=1):
            pass


def attack(attacks, name, tries, stop):
    def work(tell):
        refused, last = 0, ""
        before = 0
        while before < tries or not select.select([stop], [], [], 0)[0]:
            before += 1
            try:
                getattr(attacks, name)()
            except (hoist.HoistError, OSError) as error:
                refused += 1
                last = str(error)
            if before == tries:
                tell("begun")
        tell(f"{before} {refused} {last[:60]}")
        signal.pause()
    return start_as(EVIL, work)


def percentiles(daemon, stages):
    """OTHER's stages: (p50, p99) in microseconds, or what refused it."""
    def work(tell):
        with hoist.connect(daemon.socket) as session:
            data = np.arange(MIB, dtype=np.uint8)
            group = session.publish("own", "g", {"w": data}, deadline=10)["g"]
            took = []
            for _ in range(stages):
                begin = time.perf_counter()
                with session.stage(group, deadline=10):
                    took.append(time.perf_counter() - begin)
            took.sort()
            tell(f"{took[stages // 2] * 1e6:.0f} "
                 f"{took[stages * 99 // 100] * 1e6:.0f}")
    pid, said = start_as(OTHER, work)
    with said:
        line = said.readline().strip()
    os.waitpid(pid, 0)
    return line


def row(binary, name, tries, stages):
    daemon = RealDaemon(binary, pool=64 * MIB, slab=2 * MIB, host=128 * MIB,
                        mode="0666")
    try:
        pathlib.Path(daemon.folder.name).chmod(0o755)
        hoist.connect(daemon.socket, connect_deadline=30).close()
        attacks = Attacks(daemon)
        attacks.files()
        before = percentiles(daemon, stages)
        stop, tell_stop = os.pipe()
        pid, said = attack(attacks, name, tries, stop)
        line = said.readline().strip()
        if line == "begun":
            meanwhile = percentiles(daemon, stages)
            os.write(tell_stop, b"x")
            line = said.readline().strip()
        else:
            meanwhile = "-"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        tried, refused, *why = line.split(" ", 2)
        print(f"| {name.replace('_', ' ')} | {tried} | {refused} | "
              f"{before.replace(' ', ' / ')} | "
              f"{meanwhile.replace(' ', ' / ')} | {' '.join(why)} |",
              flush=True)
    finally:
        daemon.stop()


def others_models(binary, stages):
    """Stages while another user has 1 and 3,000 models."""
    for models in (1, 3000):
        daemon = RealDaemon(binary, pool=64 * MIB, slab=2 * MIB,
                            host=128 * MIB, mode="0666")
        try:
            pathlib.Path(daemon.folder.name).chmod(0o755)
            path = f"{daemon.folder.name}/one.safetensors"
            write_safetensors(path, {"w": ("U8", [4096], bytes(4096))})
            hoist.connect(daemon.socket, connect_deadline=30).close()

            def work(tell, path=path, models=models, daemon=daemon):
                with hoist.connect(daemon.socket) as session:
                    for number in range(models):
                        session.register(path, f"m{number}")
                tell("there")
            pid, said = start_as(EVIL, work)
            with said:
                assert said.readline() == "there\n"
            os.waitpid(pid, 0)
            took = percentiles(daemon, stages)
            print(f"{models} models of another user: p50 / p99 "
                  f"{took.replace(' ', ' / ')} us", flush=True)
        finally:
            daemon.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("hoistd")
    parser.add_argument("--tries", type=int, default=300)
    parser.add_argument("--stages", type=int, default=400)
    asked = parser.parse_args()
    print("| tried | times | refused | other's stage before, p50 / p99 us | "
          "meanwhile | the last refusal |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in ("sessions", "silent_connections", "models_of_one_file",
                 "models_of_many_files", "headers_kept", "huge_headers",
                 "published", "leases", "plans", "stage_storm"):
        tries = 3 if name == "huge_headers" else asked.tries
        row(asked.hoistd, name, tries, asked.stages)
    others_models(asked.hoistd, asked.stages)


if __name__ == "__main__":
    main()
