"""Whatever happens to hoistd while modules are attached, called and detached: no
byte is wrong, and no module is lost but to an operator who ended its session or
forgot its model.

module_storm_test.py HOIST-KEEPER HOISTD [unittest options]; needs HOIST_LIBRARY,
PYTHONPATH and PyTorch. HOIST_STORM_SECONDS (20); HOIST_STORM_SEED (by the time; it
is printed); HOIST_STORM_ACTS (all of them).

Three workers (module_worker.py) share four models. Meanwhile hoistd is killed or
stopped for a while, the node is drained and resumed, sessions are ended, models
forgotten, and the spill disk filled and emptied.
"""

import collections
import contextlib
import importlib.util
import json
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

from real_daemon import MIB, RealDaemon, Refused, halt  # noqa: E402

KEEPER = sys.argv.pop(1)
HOISTD = sys.argv.pop(1)
SECONDS = int(os.environ.get("HOIST_STORM_SECONDS", "20"))
ACTS = "kill stop_a_while drain end forget fill"
WORKERS = 3
PATIENCE = 240  # Seconds without progress of all workers: somebody hangs.


@unittest.skipUnless(importlib.util.find_spec("torch"), "needs PyTorch")
class ModuleStorm(unittest.TestCase):
    def setUp(self):
        seed = int(os.environ.get("HOIST_STORM_SEED", time.time_ns() % 10**6))
        print(f"HOIST_STORM_SEED={seed}", flush=True)
        self.random = random.Random(seed)
        self.disk = pathlib.Path(tempfile.mkdtemp(prefix="hoist-storm-"))
        self.addCleanup(os.rmdir, self.disk)
        if os.geteuid() == 0 and subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=24m", "none", self.disk],
                capture_output=True, check=False).returncode == 0:
            self.addCleanup(subprocess.run, ["umount", "-l", self.disk],
                            check=False)
        else:
            self.skipTest("needs a small disk: root, and to mount a tmpfs")
        # Half of what the models take: they come and go.
        self.daemon = RealDaemon(
            HOISTD, pool=8 * MIB, host=16 * MIB, keeper=KEEPER,
            extra=f'[disk]\nspill_dir = "{self.disk}/spill"\n')
        self.addCleanup(self.stop)
        self.daemon.until_served()
        self.lives = collections.Counter()  # Of modules, by how they ended.
        self.acts = collections.Counter()
        self.pipe, theirs = os.pipe()
        self.workers = [self.start_worker(at, theirs) for at in range(WORKERS)]
        os.close(theirs)

    def start_worker(self, at, pipe):
        with open(self.daemon.path / f"worker{at}", "wb") as log:
            return subprocess.Popen(
                [sys.executable, str(HERE / "module_worker.py"), str(pipe),
                 str(self.random.randrange(10**6))], stdout=log, stderr=log,
                pass_fds=[pipe],
                env={**os.environ, "HOIST_SOCKET": self.daemon.socket})

    def stop(self):
        for worker in self.workers:
            worker.kill()
            worker.wait()
        os.close(self.pipe)
        self.daemon.stop()

    def look(self, seconds):
        """Takes in what became of modules by then."""
        ready, _, _ = select.select([self.pipe], [], [], seconds)
        if ready:
            self.lives.update(os.read(self.pipe, 1 << 16).decode())
        for at, worker in enumerate(self.workers):
            if worker.poll() is not None:
                said = (self.daemon.path / f"worker{at}").read_text()
                self.fail(f"worker {at} ended with {worker.returncode}:\n"
                          f"{said[-3000:]}\n{self.daemon.log_text()[-3000:]}")

    def progress(self, modules):
        wanted = self.lives.total() + modules
        end = time.monotonic() + PATIENCE
        while self.lives.total() < wanted:
            self.assertLess(time.monotonic(), end, self.daemon.log_text()[-3000:])
            self.look(1)

    def hoistd(self):
        """The child of hoist-keeper that serves; None between two."""
        children = subprocess.run(
            ["pgrep", "-P", str(self.daemon.process.pid)],
            capture_output=True, text=True, check=False).stdout.split()
        return int(children[0]) if len(children) == 1 else None

    # What is done to the node. All of it may be refused, or find nobody.

    def kill(self):
        pid = self.hoistd()
        if pid is not None:
            # It may be refusing to start beside the last one's descriptors.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop_a_while(self):
        pid = self.hoistd()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                halt(pid)
                self.look(0.5)
                os.kill(pid, signal.SIGCONT)

    def drain(self):
        with contextlib.suppress(Refused):
            self.daemon.ctl("drain", "--deadline", "0")
        self.look(0.5)
        self.daemon.until_served()
        self.daemon.ctl("drain", "--resume")

    def end(self):
        sessions = json.loads(self.daemon.ctl("--json", "sessions"))["sessions"]
        if sessions:
            self.daemon.ctl("end", str(self.random.choice(sessions)["id"]),
                            "--deadline", "0")

    def forget(self):
        models = json.loads(self.daemon.ctl("models", "--json"))["models"]
        if models:
            self.daemon.ctl("evict", self.random.choice(models)["name"],
                            "--forget")

    def fill(self):
        filler = self.disk / "filler"
        with contextlib.suppress(OSError), open(filler, "wb") as file:
            while True:
                file.write(bytes(64 << 10))
        self.progress(2)
        filler.unlink()

    def test_no_byte_is_wrong_and_no_module_is_lost(self):
        ends = time.monotonic() + SECONDS
        names = os.environ.get("HOIST_STORM_ACTS", ACTS).split()
        while time.monotonic() < ends:
            self.progress(self.random.randrange(1, 4))
            act = self.random.choice(names)
            with contextlib.suppress(Refused):
                getattr(self, act)()
                self.acts[act] += 1
        self.progress(2 * WORKERS)
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            self.assertEqual(worker.wait(timeout=PATIENCE), 0)
        print(f"{dict(self.acts)}; modules: {self.lives['a']} came back, "
              f"{self.lives['r']} were not attached and as they were, "
              f"{self.lives['l']} were lost to an operator", flush=True)
        self.assertLessEqual(self.lives["l"],
                             WORKERS * (self.acts["end"] + self.acts["forget"]))


if __name__ == "__main__":
    unittest.main()
