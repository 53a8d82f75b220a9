"""What hoistd leaves behind when it dies, and who holds it: hoist-keeper.
"""

import mmap
import os
import pathlib
import resource
import signal
import subprocess
import tempfile
import unittest

import hoist
from kept import HOISTD, KEEPER, Kept, array_of, bytes_of, needs_numpy
from real_daemon import MIB, RealDaemon, halt, until, write_safetensors

GROUPS = 10


def flip(path, image):
    """A bit of the file, where it has these bytes."""
    # Mapped, as nobody can write() to a pool of reserved huge pages.
    with open(path, "r+b", buffering=0) as file, \
            mmap.mmap(file.fileno(), 0) as memory:
        at = memory.find(image[:4096])
        assert memory[at:at + len(image)] == image, path
        memory[at + 1000] ^= 4


class Published(Kept):
    """Has a hoistd, to which it publishes a model."""

    def set_up(self, **options):
        self.begin(host=64 * MIB, **options)
        self.connect().close()

    def publish(self):
        with self.connect() as session:
            for group in range(GROUPS):
                session.publish("model", f"g{group}",
                                {"w": bytes_of(group)})

    def check_all(self):
        """All groups are staged, from the host, with the right bytes."""
        with self.connect() as session:
            model = session.model("model")
            self.assertEqual([group.name for group in model],
                             [f"g{group}" for group in range(GROUPS)])
            for group in range(GROUPS):
                with session.stage(model[f"g{group}"]) as lease:
                    self.check(group, lease["w"])


@needs_numpy
class Keeper(Published):
    def setUp(self):
        self.set_up(keeper=KEEPER)

    def cpu_seconds(self):
        """That hoist-keeper has taken so far."""
        fields = pathlib.Path(
            f"/proc/{self.daemon.process.pid}/stat").read_text()
        user, system = fields.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def children_seconds(self):
        """That the calls of hoistctl have taken so far."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def test_it_takes_no_time_where_nothing_happens(self):
        before = self.cpu_seconds(), self.children_seconds()
        for _ in range(40):  # hoistd is busy, and its keeper is not.
            self.daemon.pid()
        self.assertLess(self.cpu_seconds() - before[0],
                        (self.children_seconds() - before[1]) / 10)

    def test_what_was_published_is_there_after_each_kill(self):
        self.publish()
        for _ in range(8):
            self.daemon.kill_kept()
            self.check_all()
        counters = self.daemon.counters()
        self.assertEqual(counters.get("spill_read_bytes", 0), 0)
        # What is forgotten does not come back.
        self.daemon.forget_models()
        self.daemon.kill_kept()
        with self.connect() as session:
            with self.assertRaises(hoist.NotFound):
                session.model("model")
        self.publish()
        self.daemon.kill_kept()
        self.check_all()

    def kill_hoistd_and_change(self, image):
        """A bit of what begins with these bytes, in the host pool."""
        pid = self.daemon.pid()
        halt(pid)
        pool = next(
            fd for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir()
            if "hoist-host" in os.readlink(fd))
        flip(pool, image)
        os.kill(pid, signal.SIGKILL)
        self.daemon.until_another(pid)

    def check_files(self, path, tensors):
        with self.connect() as session:
            model = session.register(path, "files")
            for group in model:
                with session.stage(group) as lease:
                    for tensor in group.tensors:
                        self.assertEqual(
                            array_of(lease[tensor.name]).tobytes(),
                            tensors[tensor.name][2], tensor.name)

    def test_what_was_read_of_files_is_not_read_again(self):
        tensors = {f"layers.{block}.w": ("U8", [MIB], os.urandom(MIB))
                   for block in range(6)}
        path = self.daemon.path / "model.safetensors"
        write_safetensors(path, tensors)
        self.check_files(path, tensors)
        for _ in range(4):
            self.daemon.kill_kept()
            self.assertGreaterEqual(self.daemon.tier("HOST")["used_bytes"],
                                    6 * MIB)
            self.check_files(path, tensors)
            self.assertEqual(self.daemon.counters()["file_read_bytes"], 0)
        # Nor are wrong bytes believed,
        self.kill_hoistd_and_change(tensors["layers.2.w"][2])
        # What is on the device is not that.
        self.daemon.ctl("evict", "files", "--tier", "device")
        self.check_files(path, tensors)
        self.assertGreater(self.daemon.counters()["file_read_bytes"], 0)
        # or those of another file.
        tensors["layers.1.w"] = ("U8", [MIB], os.urandom(MIB))
        write_safetensors(path, tensors)
        self.daemon.forget_models()
        self.daemon.kill_kept()
        self.check_files(path, tensors)

    def test_bytes_that_changed_are_lost_and_the_others_are_not(self):
        self.publish()
        self.kill_hoistd_and_change(bytes_of(3).tobytes())
        with self.connect() as session:
            model = session.model("model")
            with self.assertRaisesRegex(hoist.DataLoss, "is lost"):
                session.stage(model["g3"])
            with session.stage(model["g4"]) as lease:
                self.check(4, lease["w"])

    def test_a_keeper_that_dies_is_told_of_and_another_takes_over(self):
        self.publish()
        pid = self.daemon.pid()
        self.daemon.process.kill()
        self.daemon.process.wait()
        until(lambda: any("hoist-keeper has ended" in note
                          for note in self.daemon.status()["notes"]))
        self.check_all()
        # The same hoistd, under a new keeper.
        self.daemon.start(KEEPER)
        until(lambda: any("has taken over" in note
                          for note in self.daemon.status()["notes"]))
        self.assertEqual(self.daemon.pid(), pid)
        self.assertNotEqual(self.daemon.kill_kept(), pid)
        self.check_all()

    def test_a_folder_has_one_keeper(self):
        second = subprocess.run(
            self.daemon.kept(KEEPER) + ["true"], capture_output=True,
            text=True, timeout=60)
        self.assertEqual(second.returncode, 1)
        self.assertIn("has a keeper", second.stderr)

    def test_both_end_when_the_keeper_is_told_to(self):
        pid = self.daemon.pid()
        self.daemon.process.terminate()
        self.assertEqual(self.daemon.process.wait(timeout=60), 0)
        self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())

    def test_a_pool_of_no_stated_size_is_the_one_that_is_there(self):
        self.publish()
        config = self.daemon.path / "hoistd.toml"
        said = config.read_text()
        self.assertIn(f"pool = {64 * MIB}\n", said)
        config.write_text(said.replace(f"pool = {64 * MIB}", 'pool = "auto"'))
        self.daemon.kill_kept()
        self.check_all()
        self.assertEqual(self.daemon.tier("HOST")["capacity_bytes"], 64 * MIB)

    def test_a_restart_by_sigterm_keeps_all(self):
        self.publish()
        self.daemon.kill_kept(signal.SIGTERM)
        self.check_all()


@needs_numpy
class OnDisk(Published):
    """Nobody keeps anything: what is there again was written."""

    def begin_saving(self, save, **options):
        folder = tempfile.TemporaryDirectory(prefix="hoist-spill-")
        self.addCleanup(folder.cleanup)
        self.spill = pathlib.Path(folder.name) / "spill"
        self.set_up(extra=f'[disk]\nspill_dir = "{folder.name}/spill"\n'
                          f'save = "{save}"\n', **options)
        self.publish()

    def unsaved(self):
        return self.daemon.tier("HOST").get("unsaved_bytes", 0)

    def test_a_kill_loses_nothing_that_is_written(self):
        self.begin_saving("at_once")
        until(lambda: self.unsaved() == 0)
        self.daemon.kill()
        self.daemon.start()
        self.check_all()

    def ctl_check(self, *arguments, code):
        """What hoistctl check says; it ends with this code."""
        try:
            said, ended = self.daemon.ctl("check", *arguments), 0
        except subprocess.CalledProcessError as error:
            said, ended = error.stdout, error.returncode
        self.assertEqual(ended, code, said)
        return said

    def test_a_check_finds_and_repairs_what_is_damaged(self):
        self.begin_saving("at_once")
        until(lambda: self.unsaved() == 0)
        self.assertIn("all are right", self.ctl_check(code=0))
        for segment in (self.spill / "images").iterdir():
            if bytes_of(3).tobytes()[:4096] in segment.read_bytes():
                flip(segment, bytes_of(3).tobytes())
        said = self.ctl_check("model", "--repair", code=4)
        self.assertIn("model/g3 on disk: damaged", said)
        self.assertIn("written again from the host", said)
        until(lambda: self.unsaved() == 0)
        self.assertIn("all are right", self.ctl_check("--json", code=0)
                      and self.ctl_check(code=0))
        pool = next(
            fd for fd in pathlib.Path(f"/proc/{self.daemon.pid()}/fd").iterdir()
            if "hoist-host" in os.readlink(fd))
        flip(pool, bytes_of(4).tobytes())
        said = self.ctl_check(code=4)
        self.assertIn("model/g4 on host: damaged", said)
        self.assertIn("read from the disk again", said)
        self.check_all()
        self.assertIn("all are right", self.ctl_check(code=0))

    def test_a_stop_writes_what_is_on_no_disk(self):
        self.begin_saving("under_pressure")
        self.assertGreater(self.unsaved(), GROUPS * MIB)
        self.daemon.process.terminate()
        self.assertEqual(self.daemon.process.wait(timeout=60), 0)
        self.assertNotIn("on no disk", self.daemon.log_text())
        self.daemon.start()
        self.check_all()

    def test_so_does_a_stop_right_after_a_restart(self):
        self.begin_saving("under_pressure", keeper=KEEPER)
        for _ in range(3):
            ends = self.daemon.log_text().count("it is started again")
            self.daemon.kill_served()
            until(lambda ends=ends: self.daemon.log_text().count(
                "it is started again") > ends)
            self.daemon.process.terminate()
            self.assertEqual(self.daemon.process.wait(timeout=120), 0)
            self.daemon.start(KEEPER)
            self.check_all()
            self.daemon.forget_models()
            self.publish()

    def test_a_stop_says_what_no_disk_has(self):
        self.set_up()
        self.publish()
        self.daemon.process.terminate()
        self.assertEqual(self.daemon.process.wait(timeout=60), 0)
        self.assertIn("MiB of published images are on no disk",
                      self.daemon.log_text())
        self.daemon.start()


class Refused(unittest.TestCase):
    def test_what_was_never_ready_is_not_tried_again(self):
        daemon = RealDaemon(HOISTD, extra="[nonsense]\nkey = 1\n",
                            keeper=KEEPER)
        self.assertEqual(daemon.process.wait(timeout=60), 1)
        self.assertIn("nonsense", daemon.log_text())
        daemon.stop()

    def test_what_cannot_be_run_is_said(self):
        daemon = RealDaemon("/nowhere/hoistd", keeper=KEEPER)
        self.assertEqual(daemon.process.wait(timeout=60), 127)
        self.assertIn("/nowhere/hoistd cannot be run", daemon.log_text())
        daemon.stop()


if __name__ == "__main__":
    unittest.main()
