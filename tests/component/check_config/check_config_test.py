"""`hoistd --check-config` finds what a start would, all of it at once.

check_config_test.py HOISTD [unittest options]
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HOISTD = sys.argv.pop(1)
FINE = """[server]
socket = "{folder}/hoistd.sock"
group = ""
[device]
backend = "emulated"
"""


class CheckConfig(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hoist-check-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / "hoistd.toml"

    def check(self, text, *flags):
        """(exit status, lines of stderr without what stands before each)"""
        self.file.write_text(text.format(folder=self.folder))
        done = subprocess.run(
            [HOISTD, "--check-config", "--config", self.file, *flags],
            capture_output=True, text=True, timeout=50)
        self.out = done.stdout
        begin = f"hoistd: {self.file}:"
        return done.returncode, [line.removeprefix(begin)
                                 for line in done.stderr.splitlines()]

    def test_what_would_start_is_fine_and_leaves_nothing(self):
        self.assertEqual(self.check(FINE), (0, []))
        self.assertEqual(self.out, f"{self.file}: fine\n")
        self.assertEqual(os.listdir(self.folder), ["hoistd.toml"])

    def test_all_wrong_keys_are_told(self):
        code, lines = self.check(
            '[host]\npol = 1\n[disk]\nio = "fast"\n', "--set", "log.level=x")
        self.assertEqual(code, 1)
        self.assertEqual([line.partition(";")[0] for line in lines], [
            "2: host.pol: no such key",
            "4: disk.io: 'fast' is not allowed",
            "hoistd: --set: log.level: 'x' is not allowed"])

    def test_all_that_the_machine_lacks_is_told(self):
        (self.folder / "file").touch()
        code, lines = self.check("""[server]
socket = "{folder}/none/hoistd.sock"
grpc_socket = "{folder}/hoistd.grpc.sock"
group = "no-group-of-this-host"
admin_group = "nor-this"
[host]
pool = "9000TiB"
[disk]
spill_dir = "{folder}/file/spill"
[models]
roots = ["{folder}", "{folder}/file", "{folder}/none"]
[device]
backend = "emulated"
[[tenant]]
name = "a"
socket = "{folder}/gone/hoistd.sock"
group = "not-this-either"
""")
        self.assertEqual(code, 1)
        self.assertEqual([line.partition("; ")[0] for line in lines], [
            '4: server.group: no group "no-group-of-this-host" on this host',
            '5: server.admin_group: no group "nor-this" on this host',
            f"2: server.socket: {self.folder}/none: No such file or directory",
            ' tenant a: no group "not-this-either" on this host',
            f" tenant a: {self.folder}/gone: No such file or directory",
            lines[5].partition("; ")[0],
            f"9: disk.spill_dir: {self.folder}/file/spill: Not a directory",
            f"11: models.roots: {self.folder}/file: Not a directory",
            f"11: models.roots: {self.folder}/none: No such file or directory",
        ])
        self.assertRegex(lines[5], r"^7: host.pool: is \d+ bytes, but .* "
                         r"(has|allows) \d+; lower host.pool")

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "there is a GPU")
    def test_a_gpu_that_must_be_there_and_is_not(self):
        code, lines = self.check(FINE.replace("emulated", "cuda"))
        self.assertEqual(code, 1)
        self.assertRegex(lines[0], '^5: device.backend: is "cuda" and .* no GPU')


if __name__ == "__main__":
    unittest.main()
