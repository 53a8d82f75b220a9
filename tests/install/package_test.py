"""The package holds what its users name, and runs what README.md says.

package_test.py BUILD
"""

import json
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from real_daemon import (MIB, RealDaemon, block_model, until,  # noqa: E402
                         write_safetensors)

BUILD = str(pathlib.Path(sys.argv[1]).resolve())
del sys.argv[1]

HELD = """
LICENSE README.md CHANGELOG.md
bin/hoistd bin/hoist-keeper bin/hoistctl bin/embed_worker
lib/libhoist.so.0 lib/libhoist.so include/hoist/hoist.h include/hoist/hoist_c.h
include/hoist/hoist_attachment.h
include/hoist/c/attachment.h
include/hoist/c/copy_permit.h
include/hoist/c/plan.h
python/hoist/__init__.py python/hoist/libhoist.so.0
python/pyproject.toml python/build_wheel.py python/README.md
share/hoist/README.md share/hoist/hoistd.service share/hoist/hoistd.toml
share/hoist/metrics-loopback.conf share/hoist/prometheus/alerts.yml
share/hoist/grafana/hoist.json share/hoist/container/Dockerfile
share/hoist/kubernetes/base/daemonset.yaml
share/hoist/built-from share/hoist/sysusers.d/hoist.conf
share/hoist/examples/embed.py share/hoist/examples/torch_worker.py
share/bash-completion/completions/hoistctl
""".split()

# A worker with a plan, until its input ends.
WORKER = """
import sys
import hoist
with hoist.connect(connect_deadline=60) as session:
    for block in range(4):
        model = session.publish("streamed", f"block{block}",
                                {"w": memoryview(bytes(1 << 20))})
    with session.set_plan(model, budget=3 << 20, order=model.groups,
                          gives_way=True):
        print("planned", flush=True)
        sys.stdin.read()
"""
IDLE = """
import sys
import hoist
session = hoist.connect(connect_deadline=60)
print(session.id, flush=True)
sys.stdin.read()
"""
COPIES = """
import sys
import hoist
from hoist._copy_permit import CopyPermit
with CopyPermit(hoist.connect(connect_deadline=60)):
    print("copies", flush=True)
    sys.stdin.read()
"""


def digest(root):
    script = ROOT / "scripts/sources.lib.sh"
    return subprocess.run(
        ["bash", "-c", f'. "{script}"; sources_digest "$1"', "-", str(root)],
        check=True, capture_output=True, text=True).stdout


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.scratch = pathlib.Path(folder.name)
        cls.path = cls.scratch / "hoist"
        subprocess.run([ROOT / "scripts/package.sh", "--from", BUILD, "--dir",
                        cls.path], check=True, stdout=subprocess.DEVNULL)

    def test_it_holds_what_is_named_elsewhere(self):
        fast = pathlib.Path(BUILD, "client/_fast.abi3.so")
        held = HELD + [f"python/hoist/{fast.name}"] * fast.exists()
        self.assertEqual(
            [name for name in held if not (self.path / name).exists()], [])

    def test_it_says_which_sources_it_is_of(self):
        self.assertEqual((self.path / "share/hoist/built-from").read_text(),
                         digest(ROOT))

    def test_the_configuration_names_a_command_that_takes_it(self):
        config = self.configured()
        named = re.findall("`(hoistd .*?)`", config.read_text())
        self.assertEqual(len(named), 1)
        self.run_line(named[0].replace("/etc/hoist/hoistd.toml", str(config)))

    def configured(self):
        """hoistd.toml, on a machine that may have none of its groups."""
        there = self.scratch / "hoistd.toml"
        there.write_text(re.sub(
            r'^((admin_)?group) = ".*"$', r'\1 = ""',
            (self.path / "share/hoist/hoistd.toml").read_text(), flags=re.M))
        return there

    def test_the_guides_preload_is_taken(self):
        model = self.scratch / "preloaded.safetensors"
        write_safetensors(model, block_model())
        block = "\n".join(guide_lines("Preload and pin models"))
        self.assertIn("[[models.preload]]", block)
        config = self.configured()
        config.write_text(config.read_text().replace(
            "preload = []", block.replace("/srv/models/llama", str(model))))
        self.assertIn(str(model), config.read_text())
        self.run_line(f"hoistd --check-config --config {config}")

    def test_pip_installs_its_python_package(self):
        environment = self.scratch / "environment"
        python = environment / "bin/python"
        try:
            subprocess.run([sys.executable, "-m", "venv", environment],
                           check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            self.skipTest(f"no virtual environments here: {error.stdout}")
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-index",
                        "--disable-pip-version-check", "./python"], check=True,
                       cwd=self.path)
        said = subprocess.run(
            [python, "-c", "import hoist; print(hoist.library_path())"],
            check=True, cwd=self.scratch, capture_output=True, text=True,
            env=clean_environment()).stdout
        self.assertIn(str(environment), said)

    def test_the_guides_commands_do_as_it_says(self):
        commands = service_commands()
        self.assertIn("hoistctl watch", commands)
        models = self.scratch / "models"
        models.mkdir()
        for name in ("llama", "other"):
            write_safetensors(models / f"{name}.safetensors", block_model())
        daemon = RealDaemon(self.path / "bin/hoistd", pool=32 * MIB,
                            extra=f'[models]\nroots = ["{models}"]')
        self.addCleanup(lambda: self.assertEqual(daemon.stop(), 0))
        worker, plan, session = self.stream(daemon)
        config = self.configured()
        there = {"/etc/hoist/hoistd.toml": config,
                 "/models/llama": models / "llama.safetensors",
                 "share 7": f"share {plan}",
                 "--permit 3": f"--permit {self.permit(daemon)}",
                 "sleep 9": f"sleep {session}", "wake 9": f"wake {session}",
                 "end 9": f"end {self.idle(daemon)}"}
        for command in commands:
            if command == "hoistctl watch":
                self.watch(daemon, models / "other.safetensors")
                continue
            if command.startswith("hoistctl drain"):
                worker.communicate()  # It would be waited for.
            for named, here in there.items():
                command = command.replace(named, str(here))
            self.run_line(command, *self.statuses(command),
                          HOIST_SOCKET=daemon.socket)

    def statuses(self, command):
        """What the command may end with; this machine may lack something."""
        return (0, 4) if command.startswith("hoistctl doctor") else (0,)

    def worker(self, daemon, code):
        """Starts one that prints a line, which it returns as well."""
        worker = subprocess.Popen(
            [sys.executable, "-c", code], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env=clean_environment(
                HOIST_SOCKET=daemon.socket, PYTHONPATH=self.path / "python"))
        self.addCleanup(worker.stdout.close)
        self.addCleanup(worker.wait)
        self.addCleanup(worker.stdin.close)
        return worker, worker.stdout.readline().strip()

    def idle(self, daemon):
        """The number of a session that uses nothing."""
        _, number = self.worker(daemon, IDLE)
        self.assertRegex(number, r"^\d+$", daemon.log_text())
        return number

    def permit(self, daemon):
        """The number of a permit."""
        _, said = self.worker(daemon, COPIES)
        self.assertEqual(said, "copies", daemon.log_text())

        def listed():
            links = json.loads(daemon.ctl("status", "--json"))["links"]
            return [shown for link in links for shown in link["permits"]]
        until(listed)
        return listed()[0]["id"]

    def stream(self, daemon):
        """Starts a worker that streams; returns it, and the numbers of its plan
        and session."""
        worker, said = self.worker(daemon, WORKER)
        self.assertEqual(said, "planned", daemon.log_text())
        (plan,) = json.loads(daemon.ctl("plans", "--json"))["plans"]
        return worker, plan["id"], plan["session_id"]

    def watch(self, daemon, model):
        """hoistctl watch tells of a model that comes and goes."""
        watching = subprocess.Popen(
            [self.path / "bin/hoistctl", "watch"], stdout=subprocess.PIPE,
            env=clean_environment(HOIST_SOCKET=daemon.socket))
        try:
            # It may not listen yet when the first one comes.
            while not select.select([watching.stdout], [], [], 0)[0]:
                daemon.ctl("load", str(model))
                daemon.ctl("evict", "other", "--forget")
            self.assertTrue(any(b"other" in line for line in watching.stdout))
        finally:
            watching.kill()
            watching.communicate()

    def run_line(self, line, *statuses, **environment):
        path = f"{self.path / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", line], check=False, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, cwd=self.scratch,
            env=clean_environment(PATH=path, **environment))
        self.assertIn(done.returncode, statuses or (0,),
                      f"{line}\n{done.stdout}")


class SourcesDigest(unittest.TestCase):
    """Of a tree that no git knows."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)
        (self.tree / "CMakeLists.txt").write_text("project(x)\n")
        for name in ("cmake", "proto", "shared", "daemon", "client"):
            (self.tree / name).mkdir()
            (self.tree / name / "one").write_text(name)
        self.before = digest(self.tree)

    def test_it_is_a_sha256(self):
        self.assertRegex(self.before, r"\A[0-9a-f]{64}\n\Z")

    def test_it_stays_where_the_tree_is_copied(self):
        shutil.copytree(self.tree, self.tree / "copy")
        self.assertEqual(digest(self.tree / "copy"), self.before)

    def test_it_tells_another_content(self):
        (self.tree / "shared/one").write_text("edited")
        self.assertNotEqual(digest(self.tree), self.before)

    def test_it_tells_another_name(self):
        (self.tree / "shared/one").rename(self.tree / "shared/two")
        self.assertNotEqual(digest(self.tree), self.before)

    def test_what_running_leaves_behind_changes_nothing(self):
        cache = self.tree / "client/__pycache__"
        cache.mkdir()
        (cache / "one.pyc").write_text("bytes")
        (self.tree / "build").mkdir()
        (self.tree / "build/one").write_text("built")
        self.assertEqual(digest(self.tree), self.before)


def clean_environment(**more):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("HOIST_", "PYTHON"))}
    return {**kept, **{name: str(value) for name, value in more.items()}}


def service_commands():
    """The guide's, one a command, without their comments."""
    return [command.strip() for line in guide_lines("hoistctl by example")
            for command in line.split("#")[0].split(";")]


def guide_lines(heading):
    """What is indented by four in a section of the guide."""
    section = (ROOT / "deploy/GUIDE.md").read_text().split(
        f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^    (.*)", section, re.M)


if __name__ == "__main__":
    unittest.main()
