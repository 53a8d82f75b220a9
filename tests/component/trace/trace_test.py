"""`hoistctl trace record` of a real hoistd, while a worker streams a plan.

trace_test.py HOISTD [unittest options]; needs HOIST_LIBRARY and PYTHONPATH.
"""

import collections
import contextlib
import decimal
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
import numpy  # noqa: E402
from real_daemon import (MIB, RealDaemon, block_model, until,  # noqa: E402
                         write_safetensors)

HOISTD = sys.argv.pop(1)
HOISTCTL = pathlib.Path(HOISTD).parents[1] / "client" / "ctl" / "hoistctl"
BLOCKS = 12


class Recorded:
    """A trace, as a viewer reads it."""

    def __init__(self, text):
        # Exact, so that what touches does not overlap.
        self.all = json.loads(text, parse_float=decimal.Decimal)
        events = self.all["traceEvents"]
        self.slices = [one for one in events if one["ph"] == "X"]
        self.counters = [one for one in events if one["ph"] == "C"]
        self.processes = self.named(events, "process_name", "pid")
        self.rows = self.named(events, "thread_name", "pid", "tid")

    def named(self, events, what, *keys):
        return {tuple(one[key] for key in keys): one["args"]["name"]
                for one in events
                if one["ph"] == "M" and one["name"] == what}

    def row_of(self, one):
        return (self.processes[one["pid"],],
                self.rows[one["pid"], one["tid"]])

    def of(self, process, row):
        """Slices of rows whose names begin so."""
        return [one for one in self.slices
                if self.row_of(one)[0].startswith(process) and
                self.row_of(one)[1].startswith(row)]


class SlowToFall:
    """A socket before hoistd's; falls later than what came through it.

    A process that is killed closes what it has open in an order of the
    kernel's: here the listener comes last.
    """

    def __init__(self, path, behind):
        self.path, self.behind = str(path), str(behind)
        self.falls = False
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with self.listener:
            while True:
                ours, _ = self.listener.accept()
                if self.falls:
                    ours.close()
                    return
                theirs = socket.socket(socket.AF_UNIX)
                theirs.connect(self.behind)
                for ends in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self.carry, args=ends,
                                     daemon=True).start()

    def carry(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def bytes_of(slices):
    return sum(one["args"]["bytes"] for one in slices)


class Trace(unittest.TestCase):
    def start(self, link="100MB/s", extra="", **options):
        self.daemon = RealDaemon(
            HOISTD, extra=f'[device.emulated]\nlink = "{link}"\n{extra}',
            **options)
        self.addCleanup(self.daemon.stop)
        hoist.connect(self.daemon.socket, connect_deadline=60).close()
        self.path = self.daemon.path / "m.safetensors"
        write_safetensors(self.path, block_model(BLOCKS))
        self.out = self.daemon.path / "t.json"

    def connect(self):
        session = hoist.connect(self.daemon.socket, connect_deadline=60,
                                name="a worker")
        self.addCleanup(session.close)
        return session

    def record(self, *words, out=None, through=None):
        """Runs until it records."""
        running = subprocess.Popen(
            [HOISTCTL, "--socket", through or self.daemon.grpc_socket,
             "trace", "record", "--out", out or self.out, *words], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

        def end():
            running.kill()
            running.communicate()
        self.addCleanup(end)
        said = running.stderr.readline()
        self.assertIn("recording for", said)
        return running

    def interrupted(self, running):
        """Ctrl-C; what it has written, and said."""
        running.send_signal(signal.SIGINT)
        said, errors = running.communicate(timeout=60)
        self.assertEqual(running.returncode, 0, errors)
        return self.read(), said

    def read(self):
        recorded = Recorded(self.out.read_text())
        self.check(recorded)
        return recorded

    def check(self, recorded):
        """What a viewer counts on."""
        self.assertEqual(recorded.all["otherData"]["dropped_events"], 0)
        end = recorded.all["otherData"]["recorded_us"]
        by_row = collections.defaultdict(list)
        for one in recorded.slices:
            self.assertGreaterEqual(one["ts"], 0)
            self.assertLessEqual(one["ts"] + one["dur"], end, one)
            self.assertIn((one["pid"], one["tid"]), recorded.rows)
            by_row[one["pid"], one["tid"]].append(one)
        for slices in by_row.values():
            slices.sort(key=lambda one: (one["ts"], one["dur"]))
            for one, after in zip(slices, slices[1:]):
                self.assertLessEqual(one["ts"] + one["dur"], after["ts"],
                                     (one, after))
        for one in recorded.counters:
            self.assertIn((one["pid"],), recorded.processes)
        self.assertEqual(list(self.daemon.path.glob("t.json.*")), [])

    def stream(self, plan, model, passes):
        for _ in range(passes):
            for group in model:
                with plan.use(group):
                    pass

    def link_bytes(self):
        link, = [one for one in self.daemon.status()["links"]
                 if one["device"] == 0]
        return {key: int(link[key]) for key in (
            "plan_bytes", "lease_bytes", "background_bytes")}

    def test_a_plan_that_streams(self):
        self.start()
        running = self.record("--for", "10min")
        session = self.connect()
        model = session.register(self.path, "m")
        plan = session.set_plan(model, budget=4 * MIB, order=list(model))
        self.stream(plan, model, 3)
        streamed = {group.name for group in model
                    if plan.kind(group) == "streamed"}
        self.assertGreater(len(streamed), 6)
        number = plan.info.id
        plan.close()  # Which waits for what is copied ahead of it.
        after = self.link_bytes()
        read = self.daemon.counters()["file_read_bytes"]
        recorded, said = self.interrupted(running)
        self.assertRegex(said, r"^recorded [0-9.]+ s in \S+t\.json: \d+ slices,"
                               r" nothing dropped\nopen it at https://ui\.perf")
        # All that was copied, once, on the link's row.
        copies = recorded.of("device 0", "copies")
        of_plan = [one for one in copies if one["args"].get("plan")]
        self.assertEqual(bytes_of(of_plan), after["plan_bytes"])
        self.assertEqual(bytes_of(copies), sum(after.values()))
        # And with the plan's session.
        session_name = f"a worker, pid {os.getpid()} (session "
        lane = recorded.of(session_name, f"plan {number} copies")
        self.assertEqual(bytes_of(lane), after["plan_bytes"],
                         (recorded.processes, recorded.rows))
        self.assertEqual({one["args"]["group"] for one in lane}, streamed)
        for one in of_plan:
            self.assertEqual(one["name"], one["args"]["group"])
            self.assertEqual(one["args"]["model"], "m")
            self.assertEqual(one["args"]["plan"], number)
        # The worker does nothing but wait: for copies, and for the host.
        waits = recorded.of(session_name, f"plan {number} waits")
        self.assertGreater(sum(one["dur"] for one in waits), 100_000)
        self.assertTrue(recorded.of(session_name,
                                    f"plan {number} gaps"))
        reads = recorded.of("disk and host", "disk reads")
        self.assertEqual(bytes_of(reads), read)
        self.assertEqual({one["args"]["group"] for one in reads},
                         {group.name for group in model} -
                         {one.name for one in model if not one.image_bytes})
        names = {one["name"] for one in recorded.counters}
        self.assertEqual(names, {"link rate", "host pool used", "device used"})
        rates = [one["args"]["bytes a second"] for one in recorded.counters
                 if one["name"] == "link rate"]
        # Of two under way the second may be seen to end with the first, whose
        # end was seen late: it takes no time then.
        group = max(one["args"]["bytes"] for one in copies)
        self.assertLessEqual(max(rates), 100e6 + group / 10e-3)
        self.assertGreater(max(rates), 50e6)

    def test_why_a_link_idles(self):
        self.start(link="0")
        session = self.connect()
        model = session.register(self.path, "m")
        plan = session.set_plan(model, budget=4 * MIB, order=list(model))
        self.stream(plan, model, 1)
        streamed = [group for group in model if plan.kind(group) == "streamed"]
        running = self.record()
        self.stream(plan, model, 1)
        with plan.use(streamed[0]):  # The ring is full meanwhile.
            for _ in range(3):
                self.daemon.status()
        self.stream(plan, model, 1)
        recorded, said = self.interrupted(running)
        idle = recorded.of("device 0", "idle")
        longest = max(idle, key=lambda one: one["dur"])
        self.assertIn(longest["name"], ("its place is in use",
                                        "its last use is not done"))
        self.assertIn(f"idle: {longest['name']}", said)
        self.assertIn("idle: gaps below 1 ms", said)
        plan.close()

    def test_stages_and_who_waits_for_them(self):
        self.start()
        session = self.connect()
        model = session.register(self.path, "m")
        running = self.record()
        group = next(group for group in model if group.image_bytes >= MIB)
        session.stage(group, deadline=30).release()
        session.stage(group, deadline=30).release()  # It is there.
        recorded, _ = self.interrupted(running)
        stage, = recorded.of("a worker", "requests")
        self.assertEqual(stage["name"], f"stage {group.name}")
        self.assertEqual(stage["args"]["bytes"], group.image_bytes)
        copy, = recorded.of("device 0", "copies")
        self.assertGreaterEqual(copy["ts"], stage["ts"])
        self.assertLessEqual(copy["ts"] + copy["dur"],
                             stage["ts"] + stage["dur"])
        self.assertEqual(copy["args"]["for"], "who waits")

    def test_what_is_published_spilled_and_checked(self):
        with tempfile.TemporaryDirectory(prefix="hoist-") as disk:
            self.start(extra=f'[disk]\nspill_dir = "{disk}"\n')
            session = self.connect()
            running = self.record()
            weights = numpy.arange(MIB, dtype="u4")
            group, = session.publish("p", "g", {"w": weights})
            until(lambda: self.daemon.counters()["spill_written_bytes"])
            session.stage(group, deadline=30).release()
            self.daemon.ctl("check", "p")
            self.daemon.ctl("evict", "p")
            session.stage(group, deadline=30).release()
            recorded, _ = self.interrupted(running)
            self.daemon.process.send_signal(signal.SIGTERM)
            self.daemon.process.wait(timeout=60)
        whole = group.image_bytes
        copies = collections.Counter()
        for one in recorded.of("device 0", "copies"):
            copies[one["name"]] += one["args"]["bytes"]
        self.assertEqual(copies, {"g": 2 * whole, "read back g": whole})
        written, = recorded.of("disk and host", "disk writes")
        self.assertEqual(written["args"]["bytes"], whole)
        reads = collections.Counter(
            one["name"] for one in recorded.of("disk and host", "disk reads"))
        # On the host, and on the disk; and brought back.
        self.assertEqual(reads, {"check g": 2, "spilled g": 1})
        self.assertEqual(
            [one["name"] for one in recorded.of("disk and host", "images")],
            ["receive an image"])
        requests = {one["name"] for one in recorded.of("a worker", "requests")}
        self.assertEqual(requests, {"publish", "stage g"})

    def test_what_has_not_ended_is_there(self):
        """A worker waits for a group that does not come."""
        self.start(link="1MB/s")
        session = self.connect()
        model = session.register(self.path, "m")
        plan = session.set_plan(model, budget=4 * MIB, order=list(model))
        worker = subprocess.Popen(
            [HOISTCTL, "--socket", self.daemon.grpc_socket, "pin", "m",
             "--tier", "device", "--deadline", "60"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)
        recorded = Recorded("{\"traceEvents\": []}")

        def seen():
            nonlocal recorded
            self.daemon.ctl("trace", "record", "--for", "200ms", "--out",
                            str(self.out))
            recorded = self.read()
            return [one for one in recorded.of("hoistd", "loads and pins")
                    if one["args"].get("ended") is False]
        waits = until(seen)
        self.assertEqual(waits[0]["args"]["model"], "m")
        worker.kill()
        plan.close()

    def test_its_time_is_over(self):
        self.start()
        said = json.loads(self.daemon.ctl(
            "--json", "trace", "record", "--for", "300ms", "--out",
            str(self.out)))
        self.assertGreaterEqual(said["recorded_seconds"], 0.3)
        self.assertEqual(said["dropped_events"], 0)
        self.assertEqual(said["path"], str(self.out))
        self.read()
        self.assertEqual(self.out.stat().st_mode & 0o777, 0o600)
        text = self.daemon.ctl("trace", "record", "--for", "0.1", "--out", "-")
        self.check(Recorded(text))
        log = until(lambda: self.daemon.log_text()
                    if self.daemon.log_text().count("act=trace") == 2 else "")
        self.assertIn(' on="300ms" result=OK events=', log)

    def test_a_client_that_is_killed_leaves_nothing(self):
        self.start()
        running = self.record("--for", "10min")
        refused = self.refused("--for", "1")
        self.assertIn("RESOURCE_EXHAUSTED: another `hoistctl trace record`",
                      refused.stderr)
        self.assertEqual(refused.returncode, 1)
        running.kill()
        running.communicate()
        self.assertFalse(self.out.exists())
        for left in self.daemon.path.glob("t.json.*"):
            left.unlink()  # Its own, half written.
        until(lambda: "act=trace" in self.daemon.log_text() and
              "result=CANCELLED" in self.daemon.log_text())
        self.daemon.ctl("trace", "record", "--for", "50ms", "--out",
                        str(self.out))
        self.read()

    def refused(self, *words, out=None):
        return subprocess.run(
            [HOISTCTL, "--socket", self.daemon.grpc_socket, "trace", "record",
             "--out", out or self.daemon.path / "other.json", *words],
            check=False, text=True, capture_output=True)

    def test_what_cannot_be_written_is_an_error(self):
        self.start()
        missing = self.refused(out="/nowhere/t.json")
        self.assertEqual(missing.returncode, 2)
        self.assertIn("/nowhere/t.json: No such file", missing.stderr)
        full = self.refused("--for", "100ms", out="/dev/full")
        self.assertEqual(full.returncode, 2)
        self.assertIn("/dev/full: No space left", full.stderr)
        for time in ("0", "11min", "soon", "601"):
            wrong = self.refused("--for", time)
            self.assertEqual(wrong.returncode, 2, time)
        self.assertEqual(list(self.daemon.path.glob("other.json*")), [])

    def test_a_hoistd_that_ends_leaves_what_came(self):
        self.start()
        running = self.record("--for", "10min")
        self.daemon.kill()
        _, said = running.communicate(timeout=60)
        self.assertEqual(running.returncode, 3, said)
        self.read()

    def test_a_hoistd_whose_listener_ends_last_has_ended_too(self):
        self.start()
        door = SlowToFall(self.daemon.path / "door.grpc",
                          self.daemon.grpc_socket)
        running = self.record("--for", "10min", through=door.path)
        door.falls = True
        self.daemon.kill()
        _, said = running.communicate(timeout=60)
        self.assertEqual(running.returncode, 3, said)
        self.assertIn("no hoistd at", said)
        self.read()


if __name__ == "__main__":
    unittest.main()
