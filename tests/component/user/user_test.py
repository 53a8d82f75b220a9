"""`hoistd --user`: one's own hoistd, found by one's workers and hoistctl.

user_test.py HOISTD HOISTCTL LIBHOIST. As root each runs under a uid that has no
name, no group and no home of its own; otherwise as the user who runs it.
"""

import os
import pathlib
import pty
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAMS = [pathlib.Path(path) for path in sys.argv[1:4]]
del sys.argv[1:4]
SOMEBODY, ANOTHER = 54321, 54322

WORKER = """
import hoist
with hoist.connect(connect_deadline=30) as session:
    print(session.devices[0].kind)
"""


class User(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hoist-user-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.path.chmod(0o755)
        # Where any uid can read them: the checkout may lie in /root.
        for program in PROGRAMS:
            shutil.copy(program, self.path)
        self.hoistd, self.ctl, self.library = (
            self.path / program.name for program in PROGRAMS)
        shutil.copytree(ROOT / "client/python/hoist",
                        self.path / "python/hoist",
                        ignore=shutil.ignore_patterns("__pycache__"))
        self.runtime = self.runtime_of(SOMEBODY)

    def runtime_of(self, uid):
        runtime = self.path / f"run-{uid}"
        runtime.mkdir(mode=0o700)
        if os.getuid() == 0:
            os.chown(runtime, uid, uid)
        return runtime

    def as_user(self, uid=SOMEBODY, runtime=None):
        """Arguments for subprocess: who, and in what surroundings."""
        kept = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent",
                "XDG_RUNTIME_DIR": str(runtime or self.runtime),
                "HOIST_LIBRARY": str(self.library),
                "PYTHONPATH": str(self.path / "python"),
                "PYTHONDONTWRITEBYTECODE": "1"}
        for name in ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS"):
            if name in os.environ:
                kept[name] = os.environ[name]
        who = {}
        if os.getuid() == 0:
            who = {"user": uid, "group": uid, "extra_groups": []}
        return {"env": kept, "cwd": "/", "text": True, **who}

    def start(self, *settings, **surroundings):
        arguments = ["--set", "host.pool=64MiB", "--set", "device.pool=8MiB",
                     "--set", "device.slab=2MiB", *settings]
        daemon = subprocess.Popen(
            [self.hoistd, "--user", *arguments],
            **{"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE,
               **self.as_user(), **surroundings})
        self.addCleanup(self.end, daemon)
        return daemon

    @staticmethod
    def end(daemon):
        if daemon.poll() is None:
            daemon.kill()
        daemon.wait()
        daemon.stderr.close()

    def await_line(self, daemon, text):
        """Until hoistd has said it. Fails with what it said if it ends first."""
        said = []
        for line in daemon.stderr:
            said.append(line)
            if text in line:
                return
        self.fail(f"hoistd never said {text!r}: {''.join(said)}")

    def serving(self, *settings, **surroundings):
        daemon = self.start(*settings, **surroundings)
        self.await_line(daemon, " serves ")
        return daemon

    def refused(self, *settings, **surroundings):
        """What a hoistd says that does not start."""
        daemon = self.start(*settings, **surroundings)
        said = daemon.stderr.read()
        self.assertEqual(daemon.wait(timeout=60), 1, said)
        return said

    def worker(self, **surroundings):
        # The system's Python: any uid can run it.
        return subprocess.run(
            ["/usr/bin/python3", "-c", WORKER], check=False,
            capture_output=True, **{**self.as_user(), **surroundings})

    def status(self, *arguments, **surroundings):
        return subprocess.run(
            [self.ctl, *arguments, "status"], check=False, capture_output=True,
            **{**self.as_user(), **surroundings})

    def test_workers_and_hoistctl_find_it_by_themselves(self):
        daemon = self.start()
        done = self.worker()  # It may come before hoistd is up.
        self.assertEqual((done.returncode, done.stdout), (0, "emulated\n"),
                         done.stderr)
        self.await_line(daemon, " serves ")
        folder = self.runtime / "hoist"
        self.assertEqual(stat.S_IMODE(folder.stat().st_mode), 0o700)
        found = self.status()
        self.assertEqual(found.returncode, 0, found.stderr)
        # One variable names both sockets, here for one who looks elsewhere.
        named = self.as_user()
        named["env"] = {**named["env"], "XDG_RUNTIME_DIR": "/nonexistent",
                        "HOIST_SOCKET": str(folder / "hoistd.sock")}
        self.assertEqual(self.status(**named).returncode, 0)
        self.assertEqual(self.worker(**named).returncode, 0)
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(timeout=60), 0)

    def test_without_a_runtime_folder_it_is_found_too(self):
        bare = self.as_user()
        del bare["env"]["XDG_RUNTIME_DIR"]
        uid = SOMEBODY if os.getuid() == 0 else os.getuid()
        folder = pathlib.Path(f"/tmp/hoist-{uid}")
        if folder.exists() or pathlib.Path(f"/run/user/{uid}").exists():
            self.skipTest(f"uid {uid} has a folder for sockets already")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        self.serving(**bare)
        done = self.worker(**bare)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(stat.S_IMODE(folder.stat().st_mode), 0o700)

    def test_a_folder_that_another_user_made_is_refused(self):
        if os.getuid() != 0:
            self.skipTest("needs root, to be two users")
        bare = self.as_user()
        del bare["env"]["XDG_RUNTIME_DIR"]
        folder = pathlib.Path(f"/tmp/hoist-{SOMEBODY}")
        if folder.exists():
            self.skipTest(f"{folder} exists already")
        folder.mkdir()
        self.addCleanup(shutil.rmtree, folder)
        os.chown(folder, ANOTHER, ANOTHER)
        self.assertIn(f"belongs to uid {ANOTHER}", self.refused(**bare))
        # Nobody is talked to who may listen there.
        self.assertNotIn(str(folder), self.status(**bare).stderr)

    def test_it_serves_its_user_alone(self):
        if os.getuid() != 0:
            self.skipTest("needs root, to be two users")
        self.serving()
        served = self.runtime / "hoist/hoistd.grpc.sock"
        other = self.as_user(ANOTHER, self.runtime_of(ANOTHER))
        self.assertEqual(
            self.status("--socket", str(served), **other).returncode, 3)
        done = self.status(**other)
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertIn("hoistd --user", done.stderr)

    def test_a_second_one_is_refused_and_the_first_one_serves_on(self):
        self.serving()
        self.assertIn("another hoistd serves", self.refused())
        self.assertEqual(self.worker().returncode, 0)

    def test_no_session_is_served_before_hoistctls_socket_is_had(self):
        folder = self.runtime / "hoist"
        folder.mkdir(mode=0o700)
        if os.getuid() == 0:
            os.chown(folder, SOMEBODY, SOMEBODY)
        with socket.socket(socket.AF_UNIX) as another:
            another.bind(str(folder / "hoistd.grpc.sock"))
            another.listen()
            self.assertIn("hoistd.grpc.sock", self.refused())
        # It would have locked it to listen there.
        self.assertFalse((folder / "hoistd.sock.lock").exists())

    def test_a_dead_ones_socket_does_not_hide_the_next(self):
        daemon = self.serving()
        daemon.kill()
        daemon.wait()
        self.assertTrue((self.runtime / "hoist/hoistd.sock").exists())
        self.assertEqual(self.status().returncode, 3)
        self.start()
        done = self.worker()
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_wrong_setting_is_named(self):
        self.assertIn("did you mean device.pool?",
                      self.refused("--set", "device.pol=1"))

    def test_a_hangup_reads_the_configuration_again(self):
        config = self.runtime / "hoistd.toml"
        config.write_text("[quota]\nsessions = 8\n")
        config.chmod(0o644)
        daemon = self.serving("--config", str(config))
        self.assertEqual(self.worker().returncode, 0)
        config.write_text("[quota]\nsession = 8\n")
        daemon.send_signal(signal.SIGHUP)
        self.await_line(daemon, "did you mean quota.sessions?")
        config.write_text("[quota]\nsessions = 8\n[host]\ntouch_threads = 3\n")
        daemon.send_signal(signal.SIGHUP)
        self.await_line(daemon, "changed of host.touch_threads needs a restart")
        self.assertEqual(self.worker().returncode, 0)
        config.write_text('[log]\nlevel = "warning"\n[device]\n'
                          'load_rate = "1GiB/s"\n')
        daemon.send_signal(signal.SIGHUP)
        self.await_line(daemon, "was read again; changed: device.load_rate, log.level")
        self.assertIn("1.0 GiB/s", self.status().stdout)

    def test_it_goes_with_its_terminal(self):
        primary, terminal = pty.openpty()
        self.addCleanup(os.close, primary)
        daemon = self.start(stdin=terminal)
        os.close(terminal)
        self.await_line(daemon, " serves ")
        daemon.send_signal(signal.SIGHUP)
        self.await_line(daemon, "stopping (SIGHUP)")
        self.assertEqual(daemon.wait(timeout=60), 0)


if __name__ == "__main__":
    unittest.main()
