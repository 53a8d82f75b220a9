"""hoistd and libhoist of one build take over from those of another.

upgrade_test.py BUILD [--other BUILD SOURCE] [unittest options]: BUILD is the
present build's folder. With --other, its tests alone are run, with a build of
another commit from SOURCE. Needs NumPy.
"""

import dataclasses
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE / "../../support"))

from real_daemon import MIB, RealDaemon, until, write_safetensors  # noqa: E402

try:
    import numpy as np
except ImportError:
    np = None

GROUPS = 12


@dataclasses.dataclass
class Build:
    """The programs of one build; what it does not have is the present's."""
    hoistd: pathlib.Path
    library: pathlib.Path
    python: pathlib.Path = ROOT / "client/python"


class Builds:
    def __init__(self, folder):
        self.folder = folder
        self.keeper = folder / "daemon/keeper/hoist-keeper"
        self.ctl = folder / "client/ctl/hoistctl"
        self.present = Build(folder / "daemon/hoistd",
                             folder / "client/libhoist.so")

    def variant(self, name):
        """The present build, but for one version; see CMakeLists.txt."""
        at = self.folder / "tests/component/upgrade" / name
        library = at / "libhoist.so"
        return Build(at / "hoistd",
                     library if library.exists() else self.present.library)


def arguments():
    """BUILD, and SOURCE and Build of another commit; unittest has the rest."""
    builds = Builds(pathlib.Path(sys.argv.pop(1)))
    if len(sys.argv) < 2 or sys.argv[1] != "--other":
        return builds, None, None
    folder, source = map(pathlib.Path, sys.argv[2:4])
    del sys.argv[1:4]
    other = Build(folder / "daemon/hoistd", folder / "client/libhoist.so",
                  source / "client/python")
    return builds, source, other


BUILDS, OTHER_SOURCE, OTHER = arguments()


def bytes_of(group):
    return np.random.default_rng(group).integers(
        0, 256, MIB + 4096 * group, dtype=np.uint8)


class Worker:
    """worker.py, of a build."""

    def __init__(self, daemon, build, log):
        env = {**os.environ, "HOIST_LIBRARY": str(build.library),
               "PYTHONPATH": str(build.python)}
        self.process = subprocess.Popen(
            [sys.executable, HERE / "worker.py", daemon.socket,
             str(daemon.path / "model.safetensors"), str(6 * MIB),
             str(GROUPS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            text=True, env=env)
        self.began = self.answer()

    def answer(self):
        if not select.select([self.process.stdout], [], [], 90)[0]:
            raise AssertionError("the worker hangs")
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the worker ended: {self.process.wait()}")
        return json.loads(line)

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Upgraded(unittest.TestCase):
    """Has a hoistd under hoist-keeper that can be replaced."""

    def start(self, build):
        self.doCleanups()  # Of one that was started before.
        folder = tempfile.TemporaryDirectory(prefix="hoist-")
        self.addCleanup(folder.cleanup)
        self.binary = pathlib.Path(folder.name) / "hoistd"
        self.install(build)
        (self.binary.parent / "hoistctl").symlink_to(BUILDS.ctl)
        self.daemon = RealDaemon(self.binary, pool=48 * MIB, host=64 * MIB,
                                 keeper=str(BUILDS.keeper))
        self.addCleanup(self.daemon.stop)
        write_safetensors(self.daemon.path / "model.safetensors", {
            f"layers.{group}.w": ("U8", [len(bytes_of(group))],
                                  bytes_of(group).tobytes())
            for group in range(GROUPS)})
        self.daemon.until_served()

    def install(self, build):
        """As installing the new files does: the path is another file's."""
        fresh = self.binary.with_name("fresh")
        fresh.symlink_to(build.hoistd.resolve())
        os.replace(fresh, self.binary)
        self.installed = build.hoistd.resolve()

    def replace(self, build, with_signal):
        """Another build serves, the old one having ended so."""
        self.install(build)
        new = self.daemon.kill_kept(with_signal)
        self.assertEqual(os.readlink(f"/proc/{new}/exe"), str(self.installed))

    def worker(self, build):
        worker = Worker(self.daemon, build, self.daemon.log)
        self.addCleanup(worker.end)
        return worker

    def working(self, build):
        worker = self.worker(build)
        self.assertEqual(worker.began, {})
        self.goes_on(worker)
        return worker

    def goes_on(self, worker):
        """It streams, its lease is as it was, and others can be had."""
        before = worker.ask("passes")
        self.assertIsNone(before["error"])

        def streamed():
            now = worker.ask("passes")
            self.assertIsNone(now["error"])
            return now["passes"] >= before["passes"] + 3

        until(streamed)
        for command in ("check_lease", "check_held", "stage_others"):
            self.assertEqual(worker.ask(command), {"same": True}, command)

    def plan_ends(self, worker):
        """The error with which it did."""
        return until(lambda: worker.ask("passes")["error"])

    def session_ends(self, worker):
        """The one error that all of it ends with; what is mapped stays."""
        error = self.plan_ends(worker)
        failed = worker.ask("check_lease")["failed"]
        self.assertEqual(failed, error)
        self.assertEqual(worker.ask("stage_others")["failed"], error)
        self.assertEqual(worker.ask("check_held"), {"same": True})
        return error

    def serves_anew(self, worker):
        """The worker connects again, and no other's memory is its own."""
        self.assertEqual(worker.ask("again"), {})
        self.goes_on(worker)
        self.closes(worker)

    def closes(self, worker):
        self.assertEqual(worker.ask("close"), {})
        self.assertEqual(worker.process.wait(timeout=60), 0)
        until(lambda: self.daemon.tier("DEVICE")["leased_bytes"] == 0)

    def notes(self):
        return "\n".join(note["text"] if isinstance(note, dict) else note
                         for note in self.daemon.status()["notes"])

    def has(self, text, *words):
        for word in words:
            self.assertIn(word, text)


SIGNALS = (signal.SIGKILL, signal.SIGTERM)


@unittest.skipIf(np is None, "needs NumPy")
class SessionProtocol(Upgraded):
    """The present tree speaks 1; its variants 2, 3 and 4."""

    def test_of_the_version_before_goes_on(self):
        self.start(BUILDS.present)
        worker = self.working(BUILDS.present)
        for name, with_signal in [("protocol_2", signal.SIGKILL),
                                  ("protocol_2", signal.SIGTERM)]:
            self.replace(BUILDS.variant(name), with_signal)
            self.goes_on(worker)
            self.assertEqual(self.notes(), "")
        # One that is new there does, too; and both over the way back.
        other = self.working(BUILDS.present)
        for with_signal in SIGNALS:
            self.replace(BUILDS.present, with_signal)
            self.goes_on(worker)
            self.goes_on(other)
            self.replace(BUILDS.variant("protocol_2"), with_signal)
        self.goes_on(worker)
        self.assertEqual(other.ask("close"), {})
        self.closes(worker)

    def test_one_older_is_served_and_does_not_go_on(self):
        variant = BUILDS.variant("protocol_3")
        for with_signal in SIGNALS:
            self.start(BUILDS.present)
            worker = self.working(BUILDS.present)
            self.replace(variant, with_signal)
            error = self.session_ends(worker)
            self.assertEqual(error["type"], "Unavailable")
            self.has(error["text"], "session protocol 1", "speaks 3",
                     "serves 1 to 3", "connect again")
            self.has(self.notes(), "dropped", "1 sessions end",
                     "session protocol 1")
            self.serves_anew(worker)
            # Nor does one that it opened itself.
            worker = self.working(BUILDS.present)
            self.replace(variant, with_signal)
            error = self.session_ends(worker)
            self.assertEqual(error["type"], "Unavailable")
            self.has(error["text"], "connect again")
            self.serves_anew(worker)

    def test_older_ones_are_refused(self):
        for with_signal in SIGNALS:
            self.start(BUILDS.present)
            worker = self.working(BUILDS.present)
            self.replace(BUILDS.variant("protocol_4"), with_signal)
            error = self.session_ends(worker)
            self.assertEqual(error["type"], "FailedPrecondition")
            self.has(error["text"], "session protocol 1", "speaks 4",
                     "serves 2 to 4", "start the worker again")
            # A new one hears it at once.
            for refused in (self.worker(BUILDS.present).began["failed"],
                            worker.ask("again")["failed"]):
                self.assertEqual(refused["type"], "FailedPrecondition")
                self.has(refused["text"], "protocol 4", "speaks 1", "update")

    def test_newer_ones_are_refused(self):
        newer = BUILDS.variant("protocol_2")
        for with_signal in SIGNALS:
            self.start(BUILDS.present)
            refused = self.worker(newer).began["failed"]
            self.assertEqual(refused["type"], "FailedPrecondition")
            self.has(refused["text"], "protocol 1", "speaks 2", "update")
            # Whoever is of its own release is served, and ends with it.
            self.replace(newer, with_signal)
            worker = self.working(newer)
            self.replace(newer, with_signal)
            self.goes_on(worker)
            self.replace(BUILDS.present, with_signal)
            error = self.session_ends(worker)
            self.assertEqual(error["type"], "FailedPrecondition")
            self.has(error["text"], "session protocol 2", "speaks 1",
                     "start the worker again")
            self.working(BUILDS.present)


@unittest.skipIf(np is None, "needs NumPy")
class LaneLayout(Upgraded):
    def plan_alone_ends(self, name, with_signal):
        """Between the present tree and a variant; the worker that had it."""
        self.start(BUILDS.present)
        worker = self.working(BUILDS.present)
        self.replace(BUILDS.variant(name), with_signal)
        error = self.plan_ends(worker)
        self.assertEqual(error["type"], "Aborted")
        self.has(error["text"], "make it anew", " 1", " 2")
        self.assertIn("does not go on", self.notes())
        for command in ("check_lease", "check_held", "stage_others"):
            self.assertEqual(worker.ask(command), {"same": True}, command)
        return worker

    def test_of_another_version_ends_the_plan_and_nothing_else(self):
        for with_signal in SIGNALS:
            worker = self.plan_alone_ends("lane_version", with_signal)
            # What it reads is not made there.
            refused = worker.ask("plan_again")["failed"]
            self.assertEqual(refused["type"], "FailedPrecondition")
            self.has(refused["text"], "version 2", "reads 1", "update")
            # But it is by whoever comes next.
            self.replace(BUILDS.present, with_signal)
            self.assertEqual(worker.ask("check_lease"), {"same": True})
            self.assertEqual(worker.ask("plan"), {})
            self.goes_on(worker)

    def test_left_in_another_form_ends_the_plan_which_is_made_anew(self):
        for with_signal in SIGNALS:
            worker = self.plan_alone_ends("lane_adoption", with_signal)
            self.assertEqual(worker.ask("plan_again"), {})
            self.goes_on(worker)
            self.closes(worker)


@unittest.skipIf(np is None, "needs NumPy")
class Book(Upgraded):
    def test_of_another_version_is_dropped_and_sessions_end(self):
        newer = BUILDS.variant("book")
        for first, second, numbers in [
                (BUILDS.present, newer, ("version 2", "reads version 3")),
                (newer, BUILDS.present, ("version 3", "reads version 2"))]:
            for with_signal in SIGNALS:
                self.start(first)
                worker = self.working(BUILDS.present)
                self.replace(second, with_signal)
                error = self.session_ends(worker)
                self.assertEqual(error["type"], "Unavailable")
                self.has(error["text"], "replaced", "connect again")
                self.has(self.notes(), "dropped", "models", "sessions",
                         *numbers)
                self.serves_anew(worker)


def versions(source):
    """Of the formats that cross the border, as this tree has them."""
    def constant(path, name):
        found = re.search(rf"\b{name} = (\d+);", (source / path).read_text())
        return int(found.group(1))

    # Older commits have it under another name.
    (book,) = (source / "daemon/keeper").glob("*_book.h")
    shared = "shared/include/hoist/shared/"
    return {"protocol": constant(shared + "wire.h", "kProtocolVersion"),
            "lane": constant(shared + "lane_layout.h", "kVersion"),
            "adoption": constant(shared + "lane_layout.h", "kAdoption"),
            "book": constant(book, "kVersion")}


@unittest.skipIf(np is None, "needs NumPy")
class OtherCommit(Upgraded):
    def upgrade(self, first, second):
        """A worker of the first build, and hoistds of both in turns."""
        same = versions(ROOT) == versions(OTHER_SOURCE)
        for with_signal in SIGNALS:
            self.start(first)
            worker = self.working(first)
            self.replace(second, with_signal)
            if not same:
                self.refused(worker, first, second)
                continue
            self.goes_on(worker)
            self.assertEqual(self.notes(), "")
            newcomer = self.working(second)
            # And back, with both.
            self.replace(first, with_signal)
            self.goes_on(worker)
            self.goes_on(newcomer)
            self.replace(second, with_signal)
            self.goes_on(worker)
            self.goes_on(newcomer)
            self.assertEqual(self.daemon.counters()["file_read_bytes"], 0)
            self.assertEqual(worker.ask("close"), {})
            self.closes(newcomer)

    def refused(self, worker, first, second):
        """One typed error; and who is of the build that serves is served."""
        error = self.plan_ends(worker)
        self.assertIn(error["type"],
                      ("Unavailable", "FailedPrecondition", "Aborted"))
        self.assertEqual(worker.ask("check_held"), {"same": True})
        self.working(second)

    def test_the_two_are_two(self):
        """A copy of the same program would prove nothing."""
        self.assertNotEqual(OTHER.hoistd.read_bytes(),
                            BUILDS.present.hoistd.read_bytes())

    def test_to_the_present_commit(self):
        print("versions:", versions(OTHER_SOURCE), "to", versions(ROOT))
        self.upgrade(OTHER, BUILDS.present)

    def test_from_the_present_commit(self):
        self.upgrade(BUILDS.present, OTHER)


def load_tests(loader, _, pattern):
    """Of another commit's build, or else of the variants."""
    del pattern
    classes = ([OtherCommit] if OTHER else [SessionProtocol, LaneLayout, Book])
    return unittest.TestSuite(map(loader.loadTestsFromTestCase, classes))


if __name__ == "__main__":
    unittest.main()
