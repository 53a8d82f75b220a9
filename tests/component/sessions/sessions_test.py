"""Sessions as people see and end them: `hoistctl sessions`, `end`, `explain`.

sessions_test.py HOISTD [unittest options]; needs HOIST_LIBRARY, PYTHONPATH,
hoistctl beside hoistd, and root for other users.
"""

import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from as_user import start_as  # noqa: E402
from real_daemon import MIB, RealDaemon, halt, until  # noqa: E402

try:
    import numpy as np
except ImportError:
    np = None

HOISTD = sys.argv.pop(1)
HOISTCTL = pathlib.Path(HOISTD).parents[1] / "client" / "ctl" / "hoistctl"
REFUSED = 1
ANN, BOB = 54321, 54322

# Leases a group and says so; at a line each, asks for more, and gives it back.
HOLDER = """
import sys, hoist
session = hoist.connect(sys.argv[1], name="holder")
model = session.model("m")
lease = session.stage(model["a"], deadline=30)
view = lease["w"].numpy()
print("leased", flush=True)
sys.stdin.readline()
try:
    session.stage(model["b"], deadline=5)
    print("went on", flush=True)
except hoist.HoistError as error:
    print(type(error).__name__, error, flush=True)
sys.stdin.readline()
assert bytes(view) == bytes([1]) * (1 << 20)
del view, lease
print("gave it back", flush=True)
sys.stdin.readline()
"""


def pidfd_getfd(pidfd, number):
    """A descriptor of another process, as this one's own."""
    got = ctypes.CDLL(None, use_errno=True).syscall(438, pidfd, number, 0)
    if got < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return got


@unittest.skipIf(np is None, "needs NumPy")
class Sessions(unittest.TestCase):
    def setUp(self):
        self.daemon = RealDaemon(HOISTD, pool=8 * MIB, slab=2 * MIB,
                                 mode="0666")
        self.addCleanup(self.daemon.stop)
        self.daemon.path.chmod(0o755)
        self.publisher = hoist.connect(self.daemon.socket,
                                       connect_deadline=30)
        self.addCleanup(self.publisher.close)
        for group in ("a", "b"):
            self.publisher.publish("m", group,
                                   {"w": np.ones(MIB, dtype=np.uint8)},
                                   readers="everyone")

    def hold(self):
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, self.daemon.socket], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(holder.stdout.close)
        self.addCleanup(holder.stdin.close)
        self.addCleanup(holder.wait)
        self.addCleanup(holder.kill)
        self.assertEqual(holder.stdout.readline(), "leased\n")
        return holder

    def ctl(self, *words):
        return subprocess.run(
            [str(HOISTCTL), "--socket", self.daemon.grpc_socket, *words],
            text=True, capture_output=True, check=False)

    def sessions(self, name):
        listed = json.loads(self.daemon.ctl("--json", "sessions"))
        return [one for one in listed["sessions"]
                if one["client_name"] == name]

    def number(self, name="holder"):
        (session,) = self.sessions(name)
        return session["id"]

    def device(self):
        status = json.loads(self.daemon.ctl("--json", "status"))
        return next(tier for tier in status["tiers"]
                    if tier["tier"] == "TIER_DEVICE")

    def says(self, holder):
        holder.stdin.write("\n")
        holder.stdin.flush()
        return holder.stdout.readline()

    def test_a_session_that_uses_nothing_ends_at_once_and_is_told_why(self):
        session = hoist.connect(self.daemon.socket, name="idle")
        done = self.ctl("end", self.number("idle"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^ended session \d+ \(idle, process "
                         rf"{os.getpid()}\): 0 leases of 0 B and 0 plans")
        self.assertEqual(self.sessions("idle"), [])
        with self.assertRaisesRegex(hoist.Unavailable, r"an admin \(uid \d+\)"
                                    " has ended this session"):
            session.check()
        audit = [line for line in self.daemon.log_text().splitlines()
                 if "audit: act=end" in line]
        self.assertEqual(len(audit), 1, audit)
        self.assertIn(f'result=OK client="idle" pid={os.getpid()} leases=0',
                      audit[0])

    def test_what_a_living_worker_uses_is_its_own_until_it_lets_go(self):
        holder = self.hold()
        number = self.number()
        late = self.ctl("end", number, "--deadline", "0.2")
        self.assertEqual(late.returncode, REFUSED)
        self.assertIn("DEADLINE_EXCEEDED", late.stderr)
        # It was told, and gets nothing more.
        self.assertRegex(self.says(holder), "^Unavailable .* has ended this")
        self.assertEqual(self.device()["leased_bytes"], str(MIB))
        # Nobody is given what it may compute with.
        for group in "cdefghij":
            self.publisher.publish("m", group,
                                   {"w": np.full(MIB, 9, dtype=np.uint8)},
                                   readers="everyone")
        model = self.publisher.model("m")
        for group in "cdefghij":
            self.publisher.stage(model[group], deadline=30).release()
        waits = []
        second = threading.Thread(
            target=lambda: waits.append(self.ctl("end", number,
                                                 "--deadline", "60")))
        second.start()
        self.assertEqual(self.says(holder), "gave it back\n")
        second.join()
        self.assertEqual(self.sessions("holder"), [])
        self.assertEqual(self.device()["leased_bytes"], "0")
        # Either it waited for its end, or that had come before.
        self.assertIn("NOT_FOUND" if waits[0].returncode else "ended session",
                      waits[0].stderr + waits[0].stdout)

    def test_a_hoistd_that_ends_it_for_a_fault_waits_as_well(self):
        holder = self.hold()
        self.assertEqual(self.device()["leased_bytes"], str(MIB))
        # No word of libhoist's: another who writes to the same connection.
        found = [entry for entry in
                 pathlib.Path(f"/proc/{holder.pid}/fd").iterdir()
                 if os.readlink(entry).startswith("socket:")]
        self.assertTrue(found)
        pidfd = os.pidfd_open(holder.pid)
        self.addCleanup(os.close, pidfd)
        for entry in found:
            number = pidfd_getfd(pidfd, int(entry.name))
            with socket.socket(fileno=number) as taken:
                if taken.type == socket.SOCK_SEQPACKET:
                    taken.send(b"garbage that is no message")
        self.assertRegex(self.says(holder), "^(InvalidArgument|Unavailable|"
                         "FailedPrecondition) ")
        self.assertEqual(self.device()["leased_bytes"], str(MIB))
        self.assertEqual(self.says(holder), "gave it back\n")
        until(lambda: not self.sessions("holder"))
        self.assertEqual(self.device()["leased_bytes"], "0")

    def test_what_a_stopped_worker_has_stays_its_own_until_it_is_killed(self):
        holder = self.hold()
        number = self.number()
        halt(holder.pid)
        late = self.ctl("end", number, "--deadline", "0.2")
        self.assertEqual(late.returncode, REFUSED)
        self.assertIn("DEADLINE_EXCEEDED", late.stderr)
        self.assertIn(f"hoistctl end {number} --kill", late.stderr)
        self.assertEqual(self.device()["leased_bytes"], str(MIB))
        killed = self.ctl("end", number, "--kill")
        self.assertEqual(killed.returncode, 0, killed.stderr)
        self.assertEqual(holder.wait(), -signal.SIGKILL)
        self.assertEqual(self.device()["leased_bytes"], "0")

    def test_there_is_no_such_session(self):
        none = self.ctl("end", "12345678")
        self.assertEqual(none.returncode, REFUSED)
        self.assertIn("NOT_FOUND", none.stderr)
        self.assertIn("hoistctl sessions", none.stderr)
        self.assertEqual(self.ctl("end", "12345678", "--kill").returncode,
                         REFUSED)

    @unittest.skipIf(os.getuid() != 0, "needs root, to be several users")
    def test_each_user_sees_and_ends_their_own(self):
        def lives(tell):
            session = hoist.connect(self.daemon.socket, name="ann's")
            tell("open")
            signal.pause()
            session.close()

        pid, said = start_as(ANN, lives)
        self.addCleanup(os.waitpid, pid, 0)
        self.addCleanup(os.kill, pid, signal.SIGKILL)
        self.addCleanup(said.close)
        self.assertEqual(said.readline(), "open\n")
        number = self.number("ann's")

        def asks(uid, *words):
            def ask(tell):
                done = self.ctl(*words)
                tell(json.dumps([done.returncode, done.stdout + done.stderr]))

            child, pipe = start_as(uid, ask)
            with pipe:
                text = pipe.read()
            os.waitpid(child, 0)
            return json.loads(text)

        code, text = asks(ANN, "sessions")
        self.assertEqual(code, 0, text)
        self.assertIn("ann's", text)
        self.assertEqual(len(text.splitlines()), 2, text)
        code, text = asks(BOB, "sessions")
        self.assertEqual(code, 0, text)
        self.assertNotIn("ann's", text)
        code, text = asks(BOB, "end", number)
        self.assertEqual(code, REFUSED)
        self.assertIn("NOT_FOUND", text)
        code, text = asks(BOB, "status")
        self.assertIn("PERMISSION_DENIED", text)
        code, text = asks(ANN, "end", number, "--kill")
        self.assertIn("PERMISSION_DENIED", text)
        self.assertTrue(self.sessions("ann's"))
        code, text = asks(ANN, "end", number)
        self.assertEqual(code, 0, text)
        until(lambda: not self.sessions("ann's"))

    def test_explain_says_who_keeps_it_and_what_would_do(self):
        self.hold()
        number = self.number()
        said = self.daemon.ctl("explain", "m", "a")
        self.assertRegex(said, rf"device 0  there: leased by session {number} "
                         r"\(holder\)")
        self.assertIn(f"`hoistctl end {number}` ends it", said)
        self.assertIn("to have it again: about", said)
        self.assertIn("on no disk, and cannot be spilled now", said)
        never = self.daemon.ctl("explain", "m", "b")
        self.assertIn("device 0  not there: nobody has asked for it", never)
        self.ctl("end", number, "--kill")
        idle = self.daemon.ctl("explain", "m", "a")
        self.assertRegex(idle, r"device 0  there: kept for whoever needs it "
                         r"next; used .* ago")
        self.assertRegex(idle, r"leaves: once more than .* are asked for here")
        self.daemon.ctl("evict", "m", "a", "--tier", "device")
        self.assertRegex(self.daemon.ctl("explain", "m", "a"),
                         r"device 0  not there: evicted by an admin .* ago")

    def test_explain_of_a_model_tells_alike_groups_together(self):
        said = self.daemon.ctl("explain", "m")
        self.assertIn("m/a ... b (2 groups)  2.0 MiB", said)
        self.hold()
        apart = self.daemon.ctl("explain", "m")
        self.assertRegex(apart, r"(?m)^m/a  1\.0 MiB$")
        self.assertRegex(apart, r"(?m)^m/b  1\.0 MiB$")
        none = self.ctl("explain", "nobody")
        self.assertEqual(none.returncode, REFUSED)
        self.assertIn("NOT_FOUND", none.stderr)


if __name__ == "__main__":
    unittest.main()
