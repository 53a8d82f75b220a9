"""hoistd and its workers in pid, mount and user namespaces of their own.

namespaces_test.py HOISTD [unittest options]; needs HOIST_LIBRARY, PYTHONPATH and
root. What they share is the folder of the sockets.
"""

import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

from real_daemon import (MIB, RealDaemon, block_model, until,  # noqa: E402
                         write_safetensors)

HOISTD = sys.argv.pop(1)
PIDS = ["--pid", "--mount", "--mount-proc", "--fork", "--kill-child"]

# argv: the socket, the model's file, the user, and whether it makes a user
# namespace, whose root it is. Each line that comes is a command; a child works,
# so that the first process of the namespace outlives it.
WORKER = """
import ctypes, hashlib, json, os, signal, sys
import hoist
socket, path, uid, own = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)

def become():
    os.setgroups([])
    os.setresgid(int(uid), int(uid), int(uid))
    os.setresuid(int(uid), int(uid), int(uid))
    if own == "True":
        libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, or the map is root's.
        assert libc.unshare(0x10000000) == 0, ctypes.get_errno()
        with open("/proc/self/uid_map", "w") as uids:
            uids.write(f"0 {uid} 1")
        assert os.getuid() == 0

def sums(session, held):
    seen = {}
    for group in session.register(path):
        lease = session.stage(group, deadline=30)
        held.append(lease)
        for name in lease:
            at = lease[name]
            data = ctypes.string_at(at.address, at.nbytes) if at.nbytes else b""
            seen[name] = hashlib.sha256(data).hexdigest()
    return seen

def work():
    held = []
    try:
        session = hoist.connect(socket, name="elsewhere", connect_deadline=30)
    except hoist.HoistError as error:
        print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
        return
    print(json.dumps(os.getpid()), flush=True)
    for line in sys.stdin:
        if line == "stage\\n":
            print(json.dumps(sums(session, held)), flush=True)
        elif line == "leave the connection to a child, and die\\n":
            if os.fork() == 0:
                print(json.dumps("left"), flush=True)
                signal.pause()
            signal.sigwait([signal.SIGTERM])

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
become()
child = os.fork()
if child == 0:
    work()
    os._exit(0)
os.waitpid(child, 0)
print(json.dumps("died"), flush=True)
sys.stdin.read()
"""


class DaemonElsewhere(RealDaemon):
    """In namespaces of its own, whose first process it is."""

    def __init__(self, *namespaces, **options):
        self.namespaces = namespaces
        super().__init__(HOISTD, pool=16 * MIB, host=32 * MIB, mode="0666",
                         **options)
        self.path.chmod(0o755)

    def kept(self, keeper):
        return ["unshare", *self.namespaces] if self.namespaces else []

    def pid(self):
        """hoistd's, as this process sees it."""
        if not self.namespaces:
            return self.process.pid
        of = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return int(until(lambda: pathlib.Path(of).read_text().split())[0])

    def ctl_beside(self, *arguments):
        """hoistctl in hoistd's own namespaces, as an admin."""
        ctl = self.binary.parents[1] / "client/ctl/hoistctl"
        into = (["nsenter", "-t", str(self.pid()), "-p", "-m"]
                if self.namespaces else [])
        if "--user" in self.namespaces:
            into += ["-U", "--preserve-credentials"]
        done = subprocess.run(
            [*into, ctl, "--socket", self.grpc_socket, *arguments],
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True)
        return done.stdout

    def sessions(self):
        return json.loads(self.ctl_beside("sessions", "--json")).get(
            "sessions", [])

    def leased(self):
        tiers = json.loads(self.ctl_beside("status", "--json"))["tiers"]
        return sum(int(tier["leased_bytes"]) for tier in tiers
                   if tier["tier"] == "TIER_DEVICE")

    def stop(self):
        if self.process.poll() is None:
            os.kill(self.pid(), signal.SIGTERM)
        return super().stop()


class Worker:
    def __init__(self, test, *, uid=0, user_namespace=False):
        self.process = subprocess.Popen(
            ["unshare", *PIDS, sys.executable, "-c", WORKER,
             test.daemon.socket, str(test.model), str(uid),
             str(user_namespace)], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE)
        test.addCleanup(self.end)
        self.first = self.answer()  # Its pid there, or why it was refused.

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def end(self):
        """All of its namespace end with the first process, which reads."""
        self.process.stdin.close()
        self.process.stdout.read()
        self.process.stdout.close()
        self.process.wait()

    def worker_pid(self):
        """The one that has the session, as this process sees it."""
        pid = self.process.pid
        while True:
            children = pathlib.Path(
                f"/proc/{pid}/task/{pid}/children").read_text().split()
            if not children:
                return pid
            pid = int(children[0])


@unittest.skipIf(os.getuid() != 0, "needs root, to make namespaces")
class Namespaces(unittest.TestCase):
    def start(self, *namespaces):
        probe = subprocess.run(["unshare", *(namespaces or PIDS), "true"],
                               check=False, capture_output=True, text=True)
        if probe.returncode != 0:
            self.skipTest(f"no such namespaces here: {probe.stderr.strip()}")
        self.daemon = DaemonElsewhere(*namespaces)
        self.addCleanup(self.daemon.stop)
        self.tensors = block_model(blocks=3)
        self.model = self.daemon.path / "model.safetensors"
        write_safetensors(self.model, self.tensors)
        try:
            until(lambda: "hoistd 0" in self.daemon.ctl_beside("status"), 30)
        except AssertionError:
            self.fail(self.daemon.ctl_beside("status") + self.daemon.log_text())

    def check_bytes(self, worker):
        worker.ask("stage")
        self.assertEqual(worker.answer(), {
            name: hashlib.sha256(data).hexdigest()
            for name, (_, _, data) in self.tensors.items()})

    def one_session(self):
        one, = self.daemon.sessions()
        self.assertEqual(one["client_name"], "elsewhere")
        return one

    def row(self):
        return next(line for line in self.daemon.ctl_beside(
            "sessions").splitlines() if "elsewhere" in line)

    def test_bytes_are_equal_from_pid_namespace_to_pid_namespace(self):
        for uid in (0, 54321):
            with self.subTest(uid=uid):
                self.start(*PIDS)
                worker = Worker(self, uid=uid)
                self.check_bytes(worker)
                self.assertGreater(self.daemon.leased(), 0)

    def test_a_worker_beside_hoistds_namespace_is_outside(self):
        self.start(*PIDS)
        Worker(self, uid=54321)
        self.assertEqual(int(self.one_session()["pid"]), 0)
        self.assertRegex(self.row(), r" socket +outside +54321 ")

    def test_a_worker_below_hoistds_namespace_has_hoistds_pid(self):
        self.start()
        worker = Worker(self, uid=54321)
        self.assertEqual(int(self.one_session()["pid"]), worker.worker_pid())
        self.assertNotEqual(worker.first, worker.worker_pid())
        self.check_bytes(worker)

    def test_root_of_another_pid_namespace_is_nobody(self):
        self.start(*PIDS)
        Worker(self, uid=0)
        self.assertEqual(int(self.one_session()["uid"]), 65534)

    def test_its_death_gives_back_what_it_had(self):
        self.start(*PIDS)
        worker = Worker(self, uid=54321)
        self.check_bytes(worker)
        os.kill(worker.worker_pid(), signal.SIGKILL)
        self.assertEqual(worker.answer(), "died")
        until(lambda: not self.daemon.sessions(), 30)
        self.assertEqual(self.daemon.leased(), 0)

    def test_so_does_one_whose_connection_lives_on(self):
        """By its process alone, which has no number in hoistd's namespace."""
        if tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (6, 5):
            self.skipTest("before Linux 6.5 no descriptor tells of it")
        self.start(*PIDS)
        worker = Worker(self, uid=54321)
        self.check_bytes(worker)
        has_session = worker.worker_pid()
        worker.ask("leave the connection to a child, and die")
        self.assertEqual(worker.answer(), "left")
        self.assertEqual(len(self.daemon.sessions()), 1)
        os.kill(has_session, signal.SIGKILL)
        self.assertEqual(worker.answer(), "died")
        until(lambda: not self.daemon.sessions(), 30)
        self.assertEqual(self.daemon.leased(), 0)

    def test_root_of_a_user_namespace_is_the_user_who_made_it(self):
        self.start()
        worker = Worker(self, uid=54321, user_namespace=True)
        self.check_bytes(worker)
        self.assertEqual(int(self.one_session()["uid"]), 54321)

    def test_who_has_no_number_in_hoistds_user_namespace_is_told(self):
        self.start("--user", "--map-root-user", *PIDS)
        self.assertIn("your uid has no number in hoistd's user namespace",
                      Worker(self, uid=54321).first)

    def test_root_outside_is_told_where_admins_are(self):
        self.start(*PIDS)
        said = subprocess.run(
            [self.daemon.binary.parents[1] / "client/ctl/hoistctl", "--socket",
             self.daemon.grpc_socket, "status"], check=False,
            capture_output=True, text=True)
        self.assertEqual(said.returncode, 1)
        self.assertIn("you are uid 65534 of another user or pid namespace, "
                      "where nobody is an admin; run hoistctl where hoistd "
                      "runs (docker exec, kubectl exec", said.stderr)

    def test_another_user_is_not(self):
        self.start(*PIDS)
        said = subprocess.run(
            ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups",
             self.daemon.binary.parents[1] / "client/ctl/hoistctl", "--socket",
             self.daemon.grpc_socket, "status"], check=False,
            capture_output=True, text=True)
        self.assertIn("you are uid 54321", said.stderr)
        self.assertNotIn("namespace", said.stderr)

    def test_a_closed_socket_or_folder_says_which_group_is_lacking(self):
        self.start(*PIDS)
        for closed, mode in ((self.daemon.socket, 0o660),
                             (self.daemon.path, 0o750)):
            with self.subTest(closed=closed):
                os.chown(closed, -1, 10640)
                os.chmod(closed, mode)
                self.assertIn("your user must be in the socket's group "
                              "(hoist; here gid 10640)",
                              Worker(self, uid=54321).first)


if __name__ == "__main__":
    unittest.main()
