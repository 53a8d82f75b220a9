"""Workers go on when hoistd dies: their pointers, their plans, their calls.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import unittest

import hoist
from kept import KEEPER, Kept, bytes_of, needs_numpy, np
from real_daemon import MIB, halt, until

GROUPS = 12

# A worker that has a lease and a plan with all its residents, and waits to be
# killed.
HOLDER = """
import sys, hoist
with hoist.connect(sys.argv[1]) as session:
    model = session.register(sys.argv[2], "files")
    lease = session.stage(next(iter(model)))
    plan = session.set_plan(model, budget=int(sys.argv[3]), order=list(model))
    for group in model:  # Residents come behind the plan's answer.
        with plan.use(group):
            pass
    print("ready", flush=True)
    sys.stdin.read()
"""


@needs_numpy
class GoingOn(Kept):
    def setUp(self):
        self.begin(pool=32 * MIB, host=64 * MIB, keeper=KEEPER)
        self.path = self.write_model(GROUPS)
        self.session = self.connect()
        self.addCleanup(self.session.close)

    def stream(self, plan, model, first, groups):
        for number in range(first, first + groups):
            group = number % GROUPS
            with plan.use(model[f"layers.{group}"]) as tensors:
                self.check(group, tensors[f"layers.{group}.w"])
        return first + groups

    def test_pointers_and_plans_go_on(self):
        model = self.session.register(self.path, "files")
        lease = self.session.stage(model["layers.0"])
        held = lease["layers.0.w"]
        plan = self.session.set_plan(model, budget=6 * MIB, order=list(model))
        at = self.stream(plan, model, 0, 5)
        for kill in range(6):
            # In the middle of a pass; and once by an upgrade's restart.
            old = self.daemon.kill_served(
                signal.SIGTERM if kill == 3 else signal.SIGKILL)
            self.check(0, held)
            lease.check()
            at = self.stream(plan, model, at, 17)
            with self.session.stage(model["layers.3"]) as other:
                self.check(3, other["layers.3.w"])
            # One that is told to stop may have served all of it.
            self.daemon.until_another(old)
        # By the last hoistd: nothing was read again.
        counters = self.daemon.counters()
        self.assertEqual(counters["file_read_bytes"], 0)
        self.assertEqual(self.daemon.status()["notes"], [])
        # It can be made anew, and goes.
        plan.set_budget(8 * MIB)
        self.stream(plan, model, 0, GROUPS)
        plan.close()
        lease.release()
        self.session.close()
        until(lambda: self.daemon.tier("DEVICE")["leased_bytes"] == 0)

    def test_what_is_resident_is_for_whoever_comes_next(self):
        model = self.session.register(self.path, "files")
        for group in model:
            self.session.stage(group).release()
        self.daemon.kill_served()
        with self.connect() as other:
            same = other.register(self.path, "files")
            for group in range(GROUPS):
                with other.stage(same[f"layers.{group}"]) as lease:
                    self.check(group, lease[f"layers.{group}.w"])
        counters = self.daemon.counters()
        self.assertEqual(counters["host_to_device_bytes"], 0)
        self.assertEqual(counters["file_read_bytes"], 0)

    def test_what_was_published_goes_on_under_its_name(self):
        model = self.session.publish("mine", "g0", {"w": bytes_of(1)})
        model = self.session.publish("mine", "g1", {"w": bytes_of(2)})
        with self.session.stage(model["g1"]) as lease:
            self.daemon.kill_served()
            self.check(2, lease["w"])
            with self.session.stage(model["g0"]) as other:
                self.check(1, other["w"])
            model = self.session.publish("mine", "g2", {"w": bytes_of(3)})
            self.daemon.kill_served()
            with self.session.stage(model["g2"]) as other:
                self.check(3, other["w"])
            self.check(2, lease["w"])

    def test_what_is_forgotten_goes_unless_another_session_uses_it(self):
        def names():
            return {one["name"] for one in json.loads(
                self.daemon.ctl("models", "--json"))["models"]}

        with self.connect() as other:
            models = [self.session.publish(name, "g", {"w": bytes_of(1)})
                      for name in ("gone", "used")]
            other.model("used")
            self.daemon.kill_served()
            for model in models:
                self.session.done_with(model, forget=True)
            # Once the other one has said what it uses.
            until(lambda: names() == {"used"})
        self.assertEqual(names(), {"used"})

    def test_calls_made_while_no_hoistd_is_there_wait_for_it(self):
        model = self.session.register(self.path, "files")
        found = []

        def call(group):
            with self.session.stage(model[f"layers.{group}"]) as lease:
                self.check(group, lease[f"layers.{group}.w"])
            found.append(group)

        old = until(self.daemon.pid)
        # It takes no request any more, and then dies.
        halt(old)
        callers = [threading.Thread(target=call, args=(group,))
                   for group in range(6)]
        for caller in callers:
            caller.start()
        os.kill(old, signal.SIGKILL)
        for caller in callers:
            caller.join(timeout=60)
        self.assertEqual(sorted(found), list(range(6)))

    def test_host_images_are_read_though_hoistd_dies(self):
        model = self.session.register(self.path, "files")
        stop, read, failed = threading.Event(), [], []

        def worker():
            group = 0
            while not stop.is_set():
                try:
                    with self.session.host_image(
                            model[f"layers.{group}"]) as image:
                        image.load(deadline=60)
                        np.testing.assert_array_equal(
                            image[f"layers.{group}.w"].numpy(),
                            bytes_of(group))
                except hoist.HoistError as error:
                    failed.append(error)
                read.append(group)
                group = (group + 1) % GROUPS
        workers = [threading.Thread(target=worker) for _ in range(4)]
        for one in workers:
            one.start()
        try:
            for _ in range(12):
                before = len(read)
                until(lambda before=before: len(read) > before + 4)
                self.daemon.kill_kept()
        finally:
            stop.set()
            for one in workers:
                one.join(timeout=120)
        self.assertEqual(failed, [])

    def holder(self):
        worker = subprocess.Popen(
            [sys.executable, "-c", HOLDER, self.daemon.socket, str(self.path),
             str(6 * MIB)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(worker.stdout.close)
        self.addCleanup(worker.stdin.close)
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)
        self.assertEqual(worker.stdout.readline(), b"ready\n")
        return worker

    def test_who_dies_while_no_hoistd_is_there_leaves_nothing(self):
        worker = self.holder()
        self.assertGreater(self.daemon.tier("DEVICE")["leased_bytes"], 0)
        old = until(self.daemon.pid)
        halt(old)
        os.kill(old, signal.SIGKILL)
        worker.kill()
        worker.wait()
        until(self.daemon.pid)
        until(lambda: self.daemon.tier("DEVICE")["leased_bytes"] == 0)
        model = self.session.register(self.path, "files")
        plan = self.session.set_plan(model, budget=24 * MIB, order=list(model))
        self.stream(plan, model, 0, 2 * GROUPS)

    def test_who_is_stopped_keeps_what_it_has(self):
        worker = self.holder()
        halt(worker.pid)
        before = self.daemon.tier("DEVICE")["leased_bytes"]
        self.daemon.kill_served()
        until(self.daemon.pid)
        self.assertEqual(self.daemon.tier("DEVICE")["leased_bytes"], before)
        os.kill(worker.pid, signal.SIGCONT)
        worker.stdin.close()  # It ends in order.
        self.assertEqual(worker.wait(timeout=60), 0)
        until(lambda: self.daemon.tier("DEVICE")["leased_bytes"] == 0)

    def pinned(self, tier):
        return self.daemon.tier(tier)["pinned_bytes"]

    def test_what_an_admin_pinned_stays_pinned(self):
        model = self.session.register(self.path, "files")
        ctl = self.daemon.ctl
        ctl("pin", "files", "layers.1", "--tier", "device")
        ctl("pin", "files", "layers.2", "--tier", "host")
        on_device, on_host = self.pinned("DEVICE"), self.pinned("HOST")
        self.assertGreater(min(on_device, on_host), MIB)
        for with_signal in (signal.SIGKILL, signal.SIGTERM):
            self.daemon.kill_kept(with_signal)
            self.assertEqual(self.pinned("DEVICE"), on_device)
            # It is there once the pool is.
            until(lambda: self.pinned("HOST") == on_host)
            self.assertIn("is pinned", ctl("evict", "files"))
        counters = self.daemon.counters()
        self.assertEqual(counters["file_read_bytes"], 0)
        self.assertEqual(counters["host_to_device_bytes"], 0)
        ctl("unpin", "files", "--tier", "device")
        ctl("unpin", "files", "--tier", "host")
        self.daemon.kill_served()
        with self.session.stage(model["layers.3"]):
            self.assertEqual(self.pinned("DEVICE"), 0)
            self.assertEqual(self.pinned("HOST"), 0)

    def plan_share(self):
        plan, = json.loads(self.daemon.ctl("plans", "--json"))["plans"]
        return plan["share"]

    def loads_cap(self):
        link = self.daemon.status()["links"][0]
        return int(link["load_max_bytes_per_second"])

    def test_shares_and_caps_go_on(self):
        model = self.session.register(self.path, "files")
        plan = self.session.set_plan(model, budget=6 * MIB, order=list(model))
        number, = (plan["id"] for plan in json.loads(
            self.daemon.ctl("plans", "--json"))["plans"])
        self.daemon.ctl("share", number, "--weight", "3", "--priority", "-2",
                        "--max-rate", "9GB")
        self.daemon.ctl("share", "--loads", "0", "--max-rate", "5GB")
        share, cap = self.plan_share(), self.loads_cap()
        self.assertEqual(share["weight"], 3)
        self.assertGreater(cap, 0)
        self.daemon.kill_served()
        at = self.stream(plan, model, 0, GROUPS)
        self.assertEqual(self.plan_share(), share)
        self.assertEqual(self.loads_cap(), cap)
        # What is changed of it then is told to the next one, too.
        self.daemon.ctl("share", number, "--weight", "4")
        self.daemon.kill_served()
        self.stream(plan, model, at, GROUPS)
        self.assertEqual(self.plan_share(), share | {"weight": 4})
        # The operator's last word counts.
        config = self.daemon.path / "hoistd.toml"
        config.write_text(config.read_text().replace(
            "[host]", "load_rate = \"7MiB/s\"\n[host]"))
        self.daemon.kill_served(signal.SIGHUP)
        until(lambda: self.loads_cap() == 7 * MIB)
        self.daemon.kill_kept()
        self.assertEqual(self.loads_cap(), 7 * MIB)
        self.daemon.ctl("share", "--loads", "0", "--max-rate", "5GB")
        config.write_text(config.read_text().replace("7MiB/s", "8MiB/s"))
        self.daemon.kill_kept()
        self.assertEqual(self.loads_cap(), 8 * MIB)

    def test_where_the_keeper_dies_too_it_is_a_typed_error(self):
        model = self.session.register(self.path, "files")
        lease = self.session.stage(model["layers.0"])
        held = lease["layers.0.w"]
        self.daemon.process.kill()
        self.daemon.process.wait()
        self.daemon.kill_served()
        with self.assertRaises(hoist.Unavailable):
            while True:
                lease.check()
        # What is mapped stays.
        del held
        self.daemon.start(KEEPER)


if __name__ == "__main__":
    unittest.main()
