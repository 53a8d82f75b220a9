"""Whoever of a node is killed, whenever: no byte is wrong, and nothing is left.

kill_storm_test.py HOIST-KEEPER HOISTD [unittest options]; needs HOIST_LIBRARY,
PYTHONPATH and NumPy. HOIST_STORM_KILLS (100) kills, or as many as come in
HOIST_STORM_SECONDS; HOIST_STORM_SEED (by the time; it is printed).
HOIST_TEST_BACKEND=cuda: on a GPU, with PyTorch. Prints a table last.

Four workers stream, stage and read in place groups whose bytes they know. One after another a
worker, hoistd or hoist-keeper is killed with SIGKILL or stopped for a while: after
some groups more were found right, or the moment that a new hoistd is seen, which
then is taking over what the last one left. Half of the kills follow a pass over hot
pieces, after which others become hot. Nobody is killed before there was
progress since the last death of hoistd but one, so that each kill also shows
that the node lives. No worker that was not killed is told of any error: sessions,
plans and leases outlive all of it.
"""

import fcntl
import os
import pathlib
import random
import select
import signal
import struct
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

from real_daemon import MIB, RealDaemon, write_safetensors  # noqa: E402

try:
    import numpy as np
except ImportError:
    np = None
else:
    from storm_worker import (COLD, FOUND, GROUPS, HOT, OTHER, PIECES,
                              PIECE_BYTES, STAGED, bytes_of, bytes_of_piece)

KEEPER = sys.argv.pop(1)
HOISTD = sys.argv.pop(1)
BACKEND = os.environ.get("HOIST_TEST_BACKEND", "emulated")
SECONDS = int(os.environ.get("HOIST_STORM_SECONDS", "0"))
KILLS = int(os.environ.get("HOIST_STORM_KILLS", "100"))
WORKERS = 4
PATIENCE = 120  # Seconds without progress, of all workers: somebody hangs.


def processes(*words):
    """The pids of all whose command line has these words."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes().split(b"\0")
            status = (entry / "status").read_text()
        except OSError:
            continue
        if all(word.encode() in line for word in words):
            found[int(entry.name)] = int(
                status.split("PPid:\t")[1].split("\n")[0])
    return found


def life_of(pid):
    """The pid with its start, since a pid comes again; None: it has ended."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return pid, int(stat.rpartition(")")[2].split()[19])


@unittest.skipIf(np is None, "needs NumPy")
class KillStorm(unittest.TestCase):
    def setUp(self):
        seed = int(os.environ.get("HOIST_STORM_SEED", time.time_ns() % 10**6))
        print(f"HOIST_STORM_SEED={seed}", flush=True)
        self.random = random.Random(seed)
        self.daemon = RealDaemon(HOISTD, pool=32 * MIB, host=64 * MIB,
                                 keeper=KEEPER, backend=BACKEND)
        self.addCleanup(self.stop)
        self.config = str(self.daemon.path / "hoistd.toml")
        self.model = self.daemon.path / "model.safetensors"
        write_safetensors(self.model, {
            f"layers.{group}.w": ("U8", [len(bytes_of(group))],
                                  bytes_of(group).tobytes())
            for group in range(GROUPS)})
        self.pieces = self.daemon.path / "pieces.safetensors"
        write_safetensors(self.pieces, {
            f"experts.{piece}.w": ("U8", [PIECE_BYTES],
                                   bytes_of_piece(piece).tobytes())
            for piece in range(PIECES)})
        self.taken_over = 0  # By how many new keepers.
        self.dead = set()  # Lives of hoistd that were ended.
        self.pipes = {}
        self.right = [0] * WORKERS  # Groups that each has found right.
        self.hot = [0] * WORKERS  # Of those, with a hot piece in place.
        self.in_place = 0  # Reads of all pieces, hot and cold.
        self.wrong = 0  # Bytes.
        self.no_hoistd = None  # Since when, until one has staged a group.
        self.longest = 0.0  # Of such times.
        self.workers = [self.start_worker(at) for at in range(WORKERS)]
        self.killed = {"worker": 0, "hoistd": 0, "new hoistd": 0, "keeper": 0,
                       "stopped": 0}

    def stop(self):
        for worker in self.workers:
            worker.kill()
            worker.wait()
        for pipe in self.pipes.values():
            os.close(pipe)
        for pid in self.hoistds():
            os.kill(pid, signal.SIGCONT)
        self.daemon.stop()

    def start_worker(self, at):
        if at in self.pipes:
            os.close(self.pipes[at])
        self.pipes[at], theirs = os.pipe()
        with open(self.daemon.path / f"worker{at}", "ab") as log:
            worker = subprocess.Popen(
                [sys.executable, str(HERE / "storm_worker.py"),
                 self.daemon.socket, str(self.model), str(self.pieces),
                 str(theirs),
                 str(self.random.randrange(10**6))],
                stdout=log, stderr=log, pass_fds=[theirs])
        os.close(theirs)
        return worker

    def look(self, milliseconds):
        """Takes in what workers have found right by then; it may be nothing."""
        poll = select.poll()
        for pipe in self.pipes.values():
            poll.register(pipe, select.POLLIN)
        ready = {pipe for pipe, events in poll.poll(milliseconds)
                 if events & select.POLLIN}
        for at, pipe in self.pipes.items():
            if pipe in ready:
                self.take_in(at, os.read(pipe, FOUND.size << 12))

    def take_in(self, at, told):
        for kind, value in FOUND.iter_unpack(told):
            if kind == OTHER:
                self.wrong += int(value)
                continue
            self.right[at] += 1
            self.hot[at] += kind == HOT
            self.in_place += kind in (COLD, HOT)
            # `value`: when the worker began with it.
            if kind == STAGED and self.no_hoistd and value > self.no_hoistd:
                self.longest = max(self.longest,
                                   time.monotonic() - self.no_hoistd)
                self.no_hoistd = None

    def hoistds(self):
        """The one that serves or is about to, by the lock that it holds."""
        lock = struct.pack("hhqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            with open(self.daemon.path / "program.lock", "rb+") as file:
                lock = fcntl.fcntl(file, fcntl.F_GETLK, lock)
        except FileNotFoundError:
            return []
        kind, _, _, _, pid = struct.unpack("hhqqixxxx", lock)
        if kind == fcntl.F_UNLCK or life_of(pid) in self.dead | {None}:
            return []
        return [pid]

    def check_workers(self):
        for at, worker in enumerate(self.workers):
            if worker.poll() is not None:
                said = (self.daemon.path / f"worker{at}").read_text()
                self.fail(f"worker {at} ended with {worker.returncode}:\n"
                          f"{said[-2000:]}\n{self.daemon.log_text()[-3000:]}")

    def until(self, condition, what):
        end = time.monotonic() + PATIENCE
        while not condition():
            self.check_workers()
            if time.monotonic() > end:
                self.fail(f"no {what} in {PATIENCE} s:\n"
                          f"{self.daemon.log_text()[-3000:]}")
            self.look(milliseconds=2)

    def progress(self, groups):
        """So many groups more are found right, by all of them together."""
        wanted = sum(self.right) + groups
        self.until(lambda: sum(self.right) >= wanted, "progress")

    def some_time(self, most):
        """Up to so many looks at all processes, some milliseconds each."""
        for _ in range(self.random.randrange(most)):
            processes(HOISTD)

    def until_hot(self, at):
        """The worker has just read hot pieces in place, and goes on to others."""
        hot = self.hot[at]
        self.until(lambda: self.hot[at] > hot, "pass over hot pieces")

    def kill_worker(self, at):
        self.workers[at].kill()
        self.workers[at].wait()
        self.workers[at] = self.start_worker(at)

    def kill(self, pids):
        for pid in pids:
            self.dead.add(life_of(pid))
            self.no_hoistd = self.no_hoistd or time.monotonic()
            os.kill(pid, signal.SIGKILL)

    def kill_hoistd(self, again):
        """`again`: its successor too, as soon as it is there."""
        self.until(self.hoistds, "hoistd")
        old = self.hoistds()
        self.kill(old)
        self.killed["hoistd"] += 1
        if not again:
            return
        self.until(self.hoistds, "new hoistd")
        # Anywhere between its first and its last step, which takes some 100 ms.
        self.some_time(20)
        self.kill(self.hoistds())
        self.killed["new hoistd"] += 1

    def kill_keeper(self):
        # With neither, what hoistd has is lost.
        self.until(self.hoistds, "hoistd")
        self.daemon.process.kill()
        self.daemon.process.wait()
        self.daemon.start(KEEPER)
        self.killed["keeper"] += 1
        told = self.taken_over
        self.until(lambda: self.daemon.log_text().count(
            "a new hoist-keeper has taken over") > told, "new keeper")
        self.taken_over = told + 1

    def stop_a_while(self):
        """A worker, or hoistd, that stands still and goes on."""
        pids = [worker.pid for worker in self.workers] + self.hoistds()
        pid = self.random.choice(pids)
        os.kill(pid, signal.SIGSTOP)
        self.some_time(40)
        os.kill(pid, signal.SIGCONT)
        self.killed["stopped"] += 1

    def table(self):
        self.look(0)  # What a worker that has ended said last.
        kills = {what: count for what, count in self.killed.items()
                 if what != "stopped"}
        rows = {
            "backend": BACKEND,
            "kills": sum(kills.values()),
            **{f"  of a {what}": count for what, count in kills.items()},
            "stopped for a while": self.killed["stopped"],
            "groups found right": sum(self.right) - self.in_place,
            "reads in place": self.in_place,
            "  with a hot piece": sum(self.hot),
            "bytes compared in place": self.in_place * PIECES * PIECE_BYTES,
            "wrong bytes": self.wrong,
            "hoistd's longest absence, s": f"{self.longest:.2f}"}
        for what, value in rows.items():
            print(f"{what:28}{value:>16}", flush=True)

    def over(self, ends):
        return (time.monotonic() > ends if SECONDS else
                sum(self.killed.values()) >= KILLS)

    def test_no_byte_is_wrong_and_nothing_is_left(self):
        self.addCleanup(self.table)
        ends = time.monotonic() + SECONDS
        while not self.over(ends):
            self.progress(self.random.randrange(1, 60))
            at = self.random.randrange(WORKERS)
            if self.random.random() < 0.5:
                self.until_hot(at)
            what = self.random.random()
            if what < 0.25:
                self.kill_worker(at)
                self.killed["worker"] += 1
            elif what < 0.7:
                self.kill_hoistd(again=what > 0.6)
            elif what < 0.85:
                self.stop_a_while()
            else:
                self.kill_keeper()
        # All of them go on, and pieces become hot.
        right, hot = list(self.right), list(self.hot)
        self.until(lambda: not self.no_hoistd
                   and all(now > then + GROUPS for now, then
                           in zip(self.right, right))
                   and all(now > then for now, then in zip(self.hot, hot)),
                   "worker going on, with a hot piece")
        for worker in self.workers:
            worker.terminate()
        self.assertEqual([worker.wait(timeout=PATIENCE)
                          for worker in self.workers], [0] * WORKERS)
        self.check_nothing_is_left()

    def check_nothing_is_left(self):
        end = time.monotonic() + 30
        while self.daemon.status().get("sessions", 0):
            self.assertLess(time.monotonic(), end, self.daemon.ctl("sessions"))
        self.daemon.forget_models()
        for name in ("HOST", "DEVICE"):
            tier = self.daemon.tier(name)
            self.assertEqual(tier["leased_bytes"], 0)
            # What the last hoistd read and nobody asked for is everybody's.
            kept = sum(int(holder["bytes"])
                       for each in self.daemon.status()["tiers"]
                       if name == "HOST" for holder in each.get("holders", [])
                       if "as the last hoistd left it" in holder["name"])
            self.assertEqual(tier["used_bytes"], kept)
        (pid,) = self.hoistds()
        while lanes := [fd for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir()
                        if "hoist-lane" in os.readlink(fd)]:
            self.assertLess(time.monotonic(), end, lanes)
        self.daemon.process.terminate()
        self.daemon.process.wait(timeout=60)
        end = time.monotonic() + 30
        while processes(HOISTD, self.config):
            self.assertLess(time.monotonic(), end, "processes are left")


if __name__ == "__main__":
    unittest.main()
