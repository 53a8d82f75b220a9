"""A live hoistd is left few descriptors: whatever is asked of it is done, or
refused with what is lacking, and works again once there are some.

descriptors_test.py HOISTD [unittest options]; needs HOIST_LIBRARY, PYTHONPATH.
"""

import os
import pathlib
import resource
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import (RealDaemon, block_model, until,  # noqa: E402
                         write_safetensors)

HOISTD = os.path.abspath(sys.argv.pop(1))
BUDGET = 3 << 20
ENOUGH = 24  # For any one thing that is done here.


class Descriptors(unittest.TestCase):
    def setUp(self):
        self.daemon = RealDaemon(HOISTD)
        self.addCleanup(self.daemon.stop)
        self.pid = self.daemon.process.pid
        self.path = self.daemon.path / "m.safetensors"
        write_safetensors(self.path, block_model(3))
        self.limits = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
        with self.connect() as session:
            self.work(session, "first")

    def connect(self):
        return hoist.connect(self.daemon.socket, connect_deadline=60,
                             call_deadline=60)

    def connections(self):
        """That hoistd has open: (sessions', hoistctl's)."""
        rows = pathlib.Path("/proc/net/unix").read_text().splitlines()
        paths = [row.split()[-1] for row in rows]
        return tuple(paths.count(path) - 1  # It listens there.
                     for path in (self.daemon.socket, self.daemon.grpc_socket))

    def leave(self, count, sessions=0):
        """So many descriptors: as many numbers that are free."""
        # Those of who has left are closed a little later.
        until(lambda: self.connections() == (sessions, 0))
        used = {int(name) for name in os.listdir(f"/proc/{self.pid}/fd")}
        number = 0
        while count or number in used:
            count -= number not in used
            number += 1
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE,
                         (number, self.limits[1]))

    def feed(self):
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, self.limits)

    def publish(self, session, name):
        return session.publish(name, "g", {"w": bytearray(name * 999, "ascii")},
                               deadline=5)

    def stage(self, session, name):
        group = self.publish(session, name)["g"]
        with session.stage(group, deadline=5) as lease:
            self.assertEqual(bytes(lease["w"].numpy()),
                             (name * 999).encode())

    def plan(self, session, name):
        model = session.register(self.path, "files")
        with session.set_plan(model, order=list(model), budget=BUDGET,
                              deadline=5) as plan:
            for group in model:
                with plan.use(group):
                    pass

    def image(self, session, name):
        with session.host_image(self.publish(session, name)["g"]) as image:
            image.load(5)
            self.assertEqual(bytes(image["w"].numpy()),
                             (name * 999).encode())

    def new(self, session, name):
        with self.connect() as other:
            self.stage(other, name)

    def ctl(self, session, name):
        self.daemon.ctl("models", "--timeout", "1")

    WORK = (publish, stage, plan, image, new, ctl)

    def work(self, session, name):
        for one in self.WORK:
            one(self, session, name)

    def outcome(self, one, session, name):
        """Whether it was done; else it says what is lacking."""
        try:
            one(self, session, name)
            return True
        except hoist.HoistError as error:
            self.assertIsInstance(error, hoist.ResourceExhausted, error)
            said = str(error)
        except subprocess.CalledProcessError as error:
            said = error.stderr
            self.assertIn("RESOURCE_EXHAUSTED", said)
        self.assertRegex(said, "RLIMIT_NOFILE|LimitNOFILE")
        return False

    def test_each_thing_is_done_or_refused_with_what_is_lacking(self):
        done = {one.__name__: [] for one in self.WORK}
        for left in range(ENOUGH + 1):
            for one in self.WORK:
                with self.subTest(one.__name__, left=left):
                    # A session that is refused descriptors ends.
                    session = self.connect()
                    self.leave(left, sessions=1)
                    done[one.__name__].append(
                        self.outcome(one, session, f"{one.__name__}{left}"))
                    self.feed()
                    session.close()
                    self.assertIsNone(self.daemon.process.poll(),
                                      self.daemon.log_text()[-3000:])
        for name, outcomes in done.items():
            self.assertFalse(outcomes[0], f"{name} takes no descriptor")
            self.assertTrue(outcomes[-1], f"{name} takes more than {ENOUGH}")
        with self.connect() as session:
            self.work(session, "again")

    def test_grpc_is_asked_by_many_at_once(self):
        for left in range(0, 16):
            self.leave(left)
            asked = [subprocess.Popen(
                [self.ctl_path(), "--socket", self.daemon.grpc_socket,
                 "status", "--timeout", "1"], text=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                for _ in range(8)]
            for one in asked:
                _, said = one.communicate()
                self.assertIn(one.returncode, (0, 1, 3), said)
            self.feed()
            self.assertIsNone(self.daemon.process.poll(),
                              self.daemon.log_text()[-3000:])
            self.daemon.status()

    @staticmethod
    def ctl_path():
        return pathlib.Path(HOISTD).parents[1] / "client" / "ctl" / "hoistctl"


if __name__ == "__main__":
    unittest.main()
