"""Workers that lease host memory to write to.

arena_test.py HOIST-KEEPER HOISTD ARENA_WORKER [unittest options]; needs
HOIST_LIBRARY and PYTHONPATH, hoistctl beside hoistd, and root for other users.
"""

import ctypes
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from as_user import start_as  # noqa: E402
from hoist._arena import Arena  # noqa: E402
from real_daemon import MIB, RealDaemon, until  # noqa: E402

KEEPER = sys.argv.pop(1)
HOISTD = sys.argv.pop(1)
EXAMPLE = sys.argv.pop(1)
IN_PLACE = 32 * MIB
ADA, BOB = 54321, 54322

# A worker that has written to all of its arena.
HOLDER = """
import ctypes, sys, hoist
from hoist._arena import Arena
session = hoist.connect(sys.argv[1], name="holder")
arena = Arena(session, int(sys.argv[2]))
block = arena.take(arena.stats.bytes)
ctypes.memset(block.address, 7, block.nbytes)
print("wrote", flush=True)
sys.stdin.read()
"""


def write(block, byte):
    ctypes.memset(block.address, byte, block.nbytes)


def read(block):
    return ctypes.string_at(block.address, block.nbytes)


class ArenaTest(unittest.TestCase):
    def start(self, **options):
        options.setdefault("in_place", IN_PLACE)
        self.daemon = RealDaemon(HOISTD, pool=8 * MIB, slab=4 * MIB,
                                 mode="0666", **options)
        self.addCleanup(self.daemon.stop)
        self.daemon.path.chmod(0o755)
        return self.connect()

    def connect(self):
        session = hoist.connect(self.daemon.socket, connect_deadline=60)
        self.addCleanup(session.close)
        return session

    def in_place(self):
        """Of the device that is the memory in place: the last one."""
        return self.daemon.tier("DEVICE", device=1)

    def hold(self, nbytes):
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, self.daemon.socket, str(nbytes)],
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(holder.stdout.close)
        self.addCleanup(holder.stdin.close)
        self.addCleanup(holder.wait)
        self.addCleanup(holder.kill)
        self.assertEqual(holder.stdout.readline(), "wrote\n")
        return holder

    def as_user(self, uid, work):
        """What work(session) returns, done by that user."""
        pid, said = start_as(uid, lambda tell: tell(json.dumps(
            work(hoist.connect(self.daemon.socket)))))
        with said:
            text = said.read()
        os.waitpid(pid, 0)
        self.assertTrue(text.startswith(("[", "{", "t", "f")) and
                        text.count("\n") == 1, text)
        return json.loads(text)


class OneWorker(ArenaTest):
    def test_blocks_are_zeroed_memory_that_can_be_written_and_given(self):
        with Arena(self.start(), 9 * MIB) as arena:
            self.assertEqual(arena.stats.bytes, 10 * MIB)
            blocks = [arena.take(MIB) for _ in range(10)]
            for number, block in enumerate(blocks):
                self.assertEqual(read(block), bytes(MIB))
                write(block, number)
            for number, block in enumerate(blocks):
                self.assertEqual(read(block), bytes([number]) * MIB)
            stats = arena.stats
            self.assertEqual(
                (stats.used_bytes, stats.peak_used_bytes, stats.blocks,
                 stats.takes, stats.largest_free_bytes, stats.pinned_bytes),
                (10 * MIB, 10 * MIB, 10, 10, 0, 10 * MIB))
            for block in blocks:
                arena.give(block)
            # One piece again, over the edges of hoistd's.
            write(arena.take(10 * MIB), 1)

    def test_no_room_names_what_there_is_and_the_least_that_would_do(self):
        arena = Arena(self.start(), 4 * MIB)
        block = arena.take(3 * MIB)
        with self.assertRaisesRegex(
                hoist.ResourceExhausted,
                f"the largest free piece has {MIB}.*at least {5 * MIB} bytes"):
            arena.take(2 * MIB)
        arena.give(block)
        with self.assertRaisesRegex(hoist.InvalidArgument, "given before"):
            arena.give(block)

    def test_hoistctl_shows_who_has_how_much(self):
        arena = Arena(self.start(), 6 * MIB)
        self.assertEqual(self.in_place()["arena_bytes"], 6 * MIB)
        self.assertEqual(self.in_place()["leased_bytes"], 6 * MIB)
        shown = self.daemon.ctl("status")
        self.assertIn("6.0 MiB in arenas", shown)
        self.assertIn("arena made 6.0 MiB", shown)
        (session,) = json.loads(self.daemon.ctl("--json", "sessions"))[
            "sessions"]
        self.assertEqual((session["arenas"], int(session["arena_bytes"])),
                         (1, 6 * MIB))
        arena.close()
        self.assertEqual(self.in_place()["arena_bytes"], 0)
        self.assertEqual(self.in_place()["kept_arena_bytes"], 6 * MIB)

    def test_threads_take_and_give_at_once(self):
        arena = Arena(self.start(), 8 * MIB)
        failed = []

        def work(number):
            draw = random.Random(number)
            mine = []
            for step in range(400):
                if mine and (len(mine) > 6 or draw.random() < 0.5):
                    block, byte = mine.pop(draw.randrange(len(mine)))
                    if read(block) != bytes([byte]) * block.nbytes:
                        failed.append((number, step))
                    arena.give(block)
                    continue
                try:
                    block = arena.take(draw.randrange(256 * 1024))
                except hoist.ResourceExhausted:
                    continue
                byte = draw.randrange(256)
                write(block, byte)
                mine.append((block, byte))
            for block, _ in mine:
                arena.give(block)

        threads = [threading.Thread(target=work, args=(number,))
                   for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])
        self.assertEqual(arena.stats.used_bytes, 0)
        self.assertEqual(arena.stats.largest_free_bytes, 8 * MIB)

    def test_the_child_of_a_fork_has_no_part_in_it(self):
        arena = Arena(self.start(), 2 * MIB)
        block = arena.take(4096)
        for code, use in (
                (0, lambda: self.assertRaises(hoist.FailedPrecondition,
                                              arena.take, 1)),
                (-signal.SIGSEGV, lambda: ctypes.memset(block.address, 1, 1))):
            pid = os.fork()
            if pid == 0:
                use()
                os._exit(0)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),
                             code)
        write(block, 1)

    def test_a_closed_session_has_none_any_more(self):
        session = self.start()
        arena = Arena(session, 2 * MIB)
        arena.take(1)
        session.close()
        until(lambda: self.in_place()["arena_bytes"] == 0)
        with self.assertRaisesRegex(hoist.FailedPrecondition, "closed"):
            arena.take(1)
        arena.close()

    def test_bad_input_is_refused_with_what_would_do(self):
        session = self.start()
        for kind, text, nbytes, device in (
                (hoist.InvalidArgument, "0 bytes", 0, 0),
                (hoist.InvalidArgument, "no device 7", MIB, 7),
                (hoist.ResourceExhausted, "host.in_place is 32.0 MiB",
                 33 * MIB, 0)):
            with self.assertRaisesRegex(kind, text):
                Arena(session, nbytes, device=device)
        first = Arena(session, 20 * MIB)
        with self.assertRaisesRegex(hoist.ResourceExhausted,
                                    "one of 12.0 MiB would be enough now"):
            Arena(session, 16 * MIB, deadline=0)
        first.close()
        Arena(session, 16 * MIB, deadline=0)

    def test_where_the_node_has_no_memory_for_any_it_says_which_key(self):
        session = self.start(in_place=0)
        with self.assertRaisesRegex(hoist.Unimplemented, "host.in_place"):
            Arena(session, MIB)


    def test_the_example_in_cpp_puts_its_activations_aside(self):
        self.start()
        said = subprocess.run(
            [EXAMPLE, "--socket", self.daemon.socket, "--layers", "12"],
            check=True, capture_output=True, text=True).stdout
        self.assertIn("12 activations put aside", said)
        self.assertIn(f"at most {3 * MIB} bytes", said)
        self.assertIn("taken, 0 at last", said)
        self.assertEqual(self.in_place()["arena_bytes"], 0)


class SeveralWorkers(ArenaTest):
    def test_a_killed_workers_is_back(self):
        self.start()
        holder = self.hold(24 * MIB)
        self.assertEqual(self.in_place()["arena_bytes"], 24 * MIB)
        holder.kill()
        until(lambda: self.in_place()["arena_bytes"] == 0)
        # All of it can be leased, whatever the dead one left there.
        arena = Arena(self.connect(), IN_PLACE)
        block = arena.take(IN_PLACE)
        self.assertEqual(read(block), bytes(IN_PLACE))

    def test_the_users_next_run_makes_no_memory_and_reads_zeros(self):
        session = self.start()
        holder = self.hold(12 * MIB)
        holder.kill()
        holder.wait()
        until(lambda: self.in_place()["kept_arena_bytes"] == 12 * MIB)
        arena = Arena(session, 12 * MIB)
        self.assertEqual(read(arena.take(12 * MIB)), bytes(12 * MIB))
        counters = self.daemon.counters()
        self.assertEqual((counters["arena_made_bytes"],
                          counters["arena_reused_bytes"]),
                         (12 * MIB, 12 * MIB))

    @unittest.skipIf(os.getuid() != 0, "needs root, to be several users")
    def test_another_users_is_other_memory(self):
        self.start()

        def fill(session):
            arena = Arena(session, 24 * MIB)
            write(arena.take(24 * MIB), 7)
            return [arena.stats.bytes]

        def look(session):
            arena = Arena(session, 24 * MIB)
            return read(arena.take(24 * MIB)) == bytes(24 * MIB)

        self.assertEqual(self.as_user(ADA, fill), [24 * MIB])
        until(lambda: self.in_place()["kept_arena_bytes"] == 24 * MIB)
        self.assertTrue(self.as_user(BOB, look))
        counters = self.daemon.counters()
        self.assertEqual((counters["arena_made_bytes"],
                          counters["arena_reused_bytes"]), (48 * MIB, 0))

    @unittest.skipIf(os.getuid() != 0, "needs root, to be several users")
    def test_one_user_has_no_more_than_the_quota_and_is_told_of_nobody(self):
        self.start(extra='[quota]\ndevice_bytes = "50%"')

        def greedy(session):
            arena = Arena(session, 16 * MIB)
            try:
                Arena(session, 2 * MIB)
            except hoist.ResourceExhausted as refused:
                return [arena.stats.bytes, str(refused)]
            return []

        had, said = self.as_user(ADA, greedy)
        self.assertEqual(had, 16 * MIB)
        self.assertIn("quota.device_bytes", said)
        self.assertNotIn(str(BOB), said)

    def test_hoistctl_end_has_the_worker_give_it_back(self):
        session = self.start()
        arena = Arena(session, 4 * MIB)
        block = arena.take(MIB)
        write(block, 3)
        said = []
        ending = threading.Thread(target=lambda: said.append(
            self.daemon.ctl("end", str(session.id), "--deadline", "60")))
        ending.start()

        def refused():
            try:
                arena.give(arena.take(1))
            except hoist.Unavailable as error:
                return str(error)
            return ""
        self.assertIn("has ended this session", until(refused))
        # What it has stays its own until it gives it back.
        self.assertEqual(read(block), bytes([3]) * MIB)
        self.assertEqual(self.in_place()["arena_bytes"], 4 * MIB)
        arena.close()
        ending.join()
        self.assertIn("1 arenas of 4.0 MiB", said[0])
        self.assertEqual(self.in_place()["arena_bytes"], 0)

    def test_drain_waits_for_arenas_and_new_ones_are_refused(self):
        session = self.start()
        arena = Arena(session, 4 * MIB)
        with self.assertRaises(subprocess.CalledProcessError) as held:
            self.daemon.ctl("drain", "--deadline", "0")
        self.assertIn(f"session {session.id}",
                      held.exception.stderr)
        with self.assertRaisesRegex(hoist.Unavailable, "draining"):
            Arena(session, MIB)
        write(arena.take(MIB), 1)
        arena.close()
        self.daemon.ctl("drain", "--deadline", "10")


class HoistdDies(ArenaTest):
    def test_the_next_hoistd_goes_on_with_it(self):
        session = self.start(keeper=KEEPER)
        arena = Arena(session, 8 * MIB)
        block = arena.take(2 * MIB)
        write(block, 5)
        old = self.daemon.kill_served()
        # Nothing of the worker's waits for the next one.
        other = arena.take(MIB)
        write(other, 6)
        self.daemon.until_another(old)
        until(lambda: self.in_place()["arena_bytes"] == 8 * MIB)
        self.assertEqual(read(block), bytes([5]) * (2 * MIB))
        self.assertEqual(read(other), bytes([6]) * MIB)
        another = Arena(session, 4 * MIB)
        self.assertEqual(self.in_place()["arena_bytes"], 12 * MIB)
        arena.close()
        another.close()
        self.assertEqual(self.in_place()["arena_bytes"], 0)

    def test_without_a_keeper_the_memory_stays_the_workers(self):
        session = self.start()
        arena = Arena(session, 8 * MIB)
        block = arena.take(2 * MIB)
        write(block, 5)
        self.daemon.kill()
        until(lambda: not alive(session))
        other = arena.take(MIB)
        write(other, 6)
        arena.give(other)
        self.assertEqual(read(block), bytes([5]) * (2 * MIB))
        with self.assertRaises(hoist.Unavailable):
            Arena(session, MIB)
        # The next hoistd does not have it, and gives it to nobody.
        self.daemon.start()
        again = self.connect()
        full = Arena(again, IN_PLACE)
        write(full.take(IN_PLACE), 9)
        self.assertEqual(read(block), bytes([5]) * (2 * MIB))
        arena.close()


def alive(session):
    try:
        session.check()
    except hoist.Unavailable:
        return False
    return True


if __name__ == "__main__":
    unittest.main()
