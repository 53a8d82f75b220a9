"""Device memory that idle workers have open goes to whoever needs it.

slabs_test.py HOISTD [unittest options]; needs HOIST_LIBRARY, PYTHONPATH and
root, whose children become other users.
"""

import os
import pathlib
import signal
import sys
import traceback
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import MIB, RealDaemon, write_safetensors  # noqa: E402

try:
    import numpy as np
except ImportError:
    np = None

HOISTD = sys.argv.pop(1)
IDLE, OTHER = 54321, 54322
GROUPS = 6  # Of 2 MiB each; the pool has 16 MiB.


def image(uid, group):
    """The bytes of one user's group, unlike anybody else's."""
    return np.full(2 * MIB, (uid + 7 * group) % 251, dtype=np.uint8)


def publish(session, uid):
    for group in range(GROUPS):
        model = session.publish("m", f"g{group}", {"w": image(uid, group)},
                                deadline=10)
    return model


def stage_all(session, model, uid, deadline=20):
    leases = [session.stage(model[f"g{g}"], deadline=deadline)
              for g in range(GROUPS)]
    for group, lease in enumerate(leases):
        assert np.array_equal(lease["w"].numpy(), image(uid, group)), group
    return leases


class Worker:
    """A process of that uid with a session; it does what it is told to."""

    def __init__(self, test, socket, uid, work):
        """work(session, uid) is a generator; each next() is one step."""
        read, self.told = os.pipe()
        said, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.told)
            os.close(said)
            self._run(socket, uid, work, read, write)
        os.close(read)
        os.close(write)
        self.said = open(said, encoding="utf-8")
        test.addCleanup(self.end)

    @staticmethod
    def _run(socket, uid, work, read, write):
        def tell(text):
            os.write(write, f"{text}\n".encode())
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            with hoist.connect(socket) as session:
                steps = work(session, uid)
                while os.read(read, 1):
                    tell(next(steps))
        except hoist.HoistError as error:
            tell(f"{type(error).__name__}: {error}")
        except BaseException:
            tell("failed " + traceback.format_exc().replace("\n", " | "))
        os._exit(0)

    def start(self):
        os.write(self.told, b"x")

    def answer(self):
        return self.said.readline().strip()

    def step(self):
        self.start()
        return self.answer()

    def end(self):
        if self.pid is None:
            return
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.told)
        self.said.close()
        self.pid = None

    def stop(self):
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)


def uses_and_idles(session, uid):
    """Each step leases all, looks at the bytes, and gives all back."""
    model = publish(session, uid)
    while True:
        for lease in stage_all(session, model, uid):
            lease.release()
        yield "idle"


def holds(deadline):
    def work(session, uid):
        model = publish(session, uid)
        yield "published"
        kept = stage_all(session, model, uid, deadline)
        yield f"holds {len(kept)}"
    return work


def plans(session, uid):
    model = publish(session, uid)
    yield "published"
    with session.set_plan(model, budget=GROUPS * 2 * MIB, deadline=4,
                          stage_deadline=10) as plan:
        for group in model:
            plan.stage(group)
            plan.done(group)
        yield f"planned {plan.info.resident_bytes // MIB}"


@unittest.skipIf(os.getuid() != 0, "needs root, to be several users")
@unittest.skipIf(np is None, "needs NumPy")
class Slabs(unittest.TestCase):
    def start(self, pool=16 * MIB, extra=""):
        self.daemon = RealDaemon(HOISTD, pool=pool, slab=2 * MIB,
                                 host=64 * MIB, extra=extra, mode="0666")
        self.addCleanup(self.daemon.stop)
        pathlib.Path(self.daemon.folder.name).chmod(0o755)
        hoist.connect(self.daemon.socket, connect_deadline=30).close()

    def worker(self, uid, work):
        return Worker(self, self.daemon.socket, uid, work)

    def idle(self):
        idle = self.worker(IDLE, uses_and_idles)
        self.assertEqual(idle.step(), "idle")
        return idle

    def test_an_idle_worker_makes_way_and_goes_on(self):
        self.start()
        idle = self.idle()
        other = self.worker(OTHER, holds(deadline=20))
        self.assertEqual(other.step(), "published")
        self.assertEqual(other.step(), f"holds {GROUPS}")
        other.end()
        for _ in range(3):
            self.assertEqual(idle.step(), "idle")

    def test_two_workers_take_turns(self):
        self.start()
        idle, other = self.idle(), self.worker(OTHER, uses_and_idles)
        for _ in range(5):
            self.assertEqual(other.step(), "idle")
            self.assertEqual(idle.step(), "idle")

    def test_a_plan_is_granted_and_staged(self):
        self.start()
        self.idle()
        other = self.worker(OTHER, plans)
        self.assertEqual(other.step(), "published")
        self.assertEqual(other.step(), f"planned {GROUPS * 2}")

    def test_a_stopped_worker_costs_a_refusal_that_says_why(self):
        self.start(extra='[models]\nroots = ["/"]\n')
        idle = self.idle()
        other = self.worker(OTHER, holds(deadline=4))
        planner = self.worker(OTHER + 1, plans)
        admin = self.worker(0, holds(deadline=4))
        for worker in (other, planner, admin):
            self.assertEqual(worker.step(), "published")
        idle.stop()
        # One after another: who is refused leaves what it had to the next.
        for worker in (other, planner):
            said = worker.step()
            self.assertIn("ResourceExhausted", said)
            self.assertIn("is held open by idle workers that do not", said)
            self.assertNotIn(str(IDLE), said)
        silent = (f"held open by idle workers of uid {IDLE} (pid {idle.pid}) "
                  "that do not answer")
        self.assertIn(silent, admin.step())
        path = self.daemon.path / "loaded.safetensors"
        write_safetensors(path, {
            f"l.{n}.w": ("U8", [2 * MIB], bytes(2 * MIB))
            for n in range(GROUPS)})
        self.assertIn(silent, self.daemon.ctl("load", path, "--tier", "device"))

    def test_its_going_on_or_its_end_gives_the_memory(self):
        for end in (Worker.go_on, Worker.end):
            with self.subTest(end=end.__name__):
                self.start()
                idle = self.idle()
                other = self.worker(OTHER, holds(deadline=60))
                self.assertEqual(other.step(), "published")
                idle.stop()
                other.start()
                # Once another is refused, the worker that waits waits too.
                third = self.worker(OTHER + 1, holds(deadline=3))
                self.assertEqual(third.step(), "published")
                self.assertIn("ResourceExhausted", third.step())
                end(idle)
                self.assertEqual(other.answer(), f"holds {GROUPS}")
                self.daemon.stop()

    def test_many_users_hold_a_little_each(self):
        users = 40
        self.start(pool=users * 2 * MIB)

        def little(session, uid):
            data = np.full(32768, uid % 251, dtype=np.uint8)
            model = session.publish("m", "g", {"w": data}, deadline=10)
            lease = session.stage(model["g"], deadline=10)
            assert np.array_equal(lease["w"].numpy(), data)
            yield "holds"
        workers = [self.worker(60000 + n, little) for n in range(users)]
        for worker in workers:
            self.assertEqual(worker.step(), "holds")


if __name__ == "__main__":
    unittest.main()
