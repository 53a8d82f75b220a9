"""The image is built and run by deploy/container/README.md, workers beside it.

image_test.py BUILD [unittest options]
"""

import hashlib
import json
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import world  # noqa: E402

WHY_NOT = world.enter("buildah", "runc", "debootstrap")

from real_daemon import (MIB, block_model, until,  # noqa: E402
                         write_safetensors)

BUILD = str(pathlib.Path(sys.argv.pop(1)).resolve())
README = world.ROOT / "deploy/container/README.md"
DOCKERFILE = world.ROOT / "deploy/container/Dockerfile"
UID = 10640

# Stages each group of a file again and again; a line says what it saw.
WORKER = """
import ctypes, hashlib, json, sys, hoist
with hoist.connect(name="tiny-worker", connect_deadline=60) as session:
    model = session.register("/srv/models/tiny.safetensors")
    while sys.stdin.readline():
        seen = {}
        for group in model:
            with session.stage(group, deadline=30) as lease:
                for name in lease:
                    there = lease[name]
                    data = (ctypes.string_at(there.address, there.nbytes)
                            if there.nbytes else b"")
                    seen[name] = hashlib.sha256(data).hexdigest()
        print(json.dumps(seen), flush=True)
"""
WORLD = None


def setUpModule():
    """One world for all tests of this file, with its two images."""
    if WHY_NOT:
        raise unittest.SkipTest(WHY_NOT)
    global WORLD
    WORLD = world.make(BUILD, unittest.addModuleCleanup)
    write_models_and_configuration()
    WORLD.follow(README, "Build")
    WORLD.run("bash", "-euc", next(
        line for line in world.commands(README, "Workers")
        if line.startswith("docker build")))


def write_models_and_configuration():
    models = pathlib.Path("/srv/models")
    models.mkdir()
    WORLD.tensors = block_model(blocks=3)
    write_safetensors(models / "tiny.safetensors", WORLD.tensors)
    config = (WORLD.archive / "share/hoist/hoistd.toml").read_text()
    for pattern, value in ((r"^roots = \[\]", 'roots = ["/srv/models"]'),
                           (r'^spill_dir = ""',
                            'spill_dir = "/var/lib/hoist/spill"'),
                           (r'^pool = "auto"', f"pool = {256 * MIB}")):
        config = re.sub(pattern, value, config, flags=re.M)
    pathlib.Path("/etc/hoist").mkdir()
    pathlib.Path("/etc/hoist/hoistd.toml").write_text(config)


def inside(*command):
    return WORLD.run("docker", "exec", "hoistd", *command)


def hoistctl(*arguments):
    return inside("hoistctl", *arguments)


def hoistctl_said():
    return WORLD.run("docker", "exec", "hoistd", "hoistctl", "status",
                     check=False)


def hoistd_pid():
    """In hoistd's own namespace; None while it does not answer."""
    try:
        return int(json.loads(hoistctl("status", "--json"))["pid"])
    except AssertionError:
        return None


class Running(unittest.TestCase):
    """Each class has a hoistd of its own, started as the README says."""

    @classmethod
    def setUpClass(cls):
        cls.follow_run()

    @classmethod
    def follow_run(cls):
        cls.addClassCleanup(WORLD.run, "docker", "rm", "-f", "hoistd",
                            check=False)
        *first, status, reload = world.commands(README, "Run")
        for line in first:
            WORLD.run("bash", "-euc", line)
        try:
            until(hoistd_pid, seconds=20)
        except AssertionError:
            raise AssertionError(hoistctl_said() + WORLD.run(
                "docker", "logs", "hoistd"))
        assert "hoistd " in WORLD.run("bash", "-euc", status)
        cls.reload = reload

    def worker(self, user="1000:1000"):
        """A worker in a container of its own; what it saw, pass by pass."""
        running = subprocess.Popen(
            ["docker", "run", "--rm", "--name", "worker", "--user", user,
             "--group-add", str(UID), "--network", "none",
             "-v", "/run/hoist:/run/hoist:ro",
             "-v", "/srv/models:/srv/models:ro", "worker",
             "python3", "-c", WORKER], env=WORLD.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)

        def end():
            running.stdin.close()
            running.stdout.close()
            running.wait()
        self.addCleanup(end)

        def one_pass():
            running.stdin.write("go\n")
            running.stdin.flush()
            return json.loads(running.stdout.readline())
        return one_pass

    def true_sums(self):
        return {name: hashlib.sha256(data).hexdigest()
                for name, (_, _, data) in WORLD.tensors.items()}


class Image(Running):
    def setUp(self):
        self.config = json.loads(WORLD.run("docker", "inspect-image", "hoist"))

    def test_it_runs_as_a_user_without_rights(self):
        for pid in ("1", str(hoistd_pid())):
            status = dict(re.findall(r"^(\w+):\t(.*)$", inside(
                "cat", f"/proc/{pid}/status"), re.M))
            self.assertEqual(status["Uid"].split(), [str(UID)] * 4)
            for kind in ("CapEff", "CapPrm", "CapBnd"):
                self.assertEqual(int(status[kind], 16), 0, kind)
            self.assertEqual(status["NoNewPrivs"], "1")
            self.assertEqual(status["Seccomp"], "2")

    def test_the_keeper_is_the_first_process(self):
        self.assertEqual(inside("cat", "/proc/1/comm").strip(), "hoist-keeper")

    def test_the_user_is_a_number_for_runAsNonRoot(self):
        self.assertEqual(self.config["User"], f"{UID}:{UID}")

    def test_its_health_check_answers(self):
        kind, *command = self.config["Healthcheck"]["Test"]
        self.assertEqual(kind, "CMD")
        self.assertIn("hoistd ", inside(*command))

    def test_labels_say_what_it_is(self):
        self.assertEqual(
            self.config["Labels"]["org.opencontainers.image.title"], "hoist")

    def test_what_it_writes_is_where_the_README_says(self):
        for folder, mode in (("/run/hoist", "750"), ("/var/lib/hoist", "700")):
            self.assertEqual(inside("stat", "-c", "%u %a", folder).strip(),
                             f"{UID} {mode}")
        self.assertIn("Read-only file system", WORLD.run(
            "docker", "exec", "hoistd", "touch", "/opt/hoist/written",
            check=False))

    def test_a_changed_configuration_is_read_again(self):
        WORLD.run("bash", "-euc", self.reload)
        until(lambda: "was read again; changed" in
              WORLD.run("docker", "logs", "hoistd"))

    def test_a_model_is_loaded_by_a_path_that_is_the_hosts(self):
        self.assertIn("loaded", hoistctl("load",
                                         "/srv/models/tiny.safetensors"))

    def test_the_host_is_no_admin(self):
        """Nor root in another pid namespace, as the README says."""
        said = WORLD.run(WORLD.archive / "bin/hoistctl", "status", check=False)
        self.assertIn("PERMISSION_DENIED", said)


class Workers(Running):
    def test_the_commands_of_the_README_connect(self):
        said = WORLD.follow(README, "Workers")
        self.assertIn("Session", said[-1])

    def test_a_worker_of_another_container_sees_the_files_bytes(self):
        one_pass = self.worker()
        self.assertEqual(one_pass(), self.true_sums())
        row = next(line for line in hoistctl("sessions").splitlines()
                   if "tiny-worker" in line)
        self.assertRegex(row, r" outside +1000 ")

    def test_it_goes_on_when_hoistd_dies(self):
        one_pass = self.worker()
        one_pass()
        died = hoistd_pid()
        inside("sh", "-c", f"kill -KILL {died}")
        self.assertEqual(one_pass(), self.true_sums())
        self.assertNotEqual(until(hoistd_pid), died)

    def test_a_worker_of_another_group_is_told_which(self):
        said = WORLD.run(
            "docker", "run", "--rm", "--user", "1000:1000", "-v",
            "/run/hoist:/run/hoist:ro", "worker", "python3", "-c",
            "import hoist; hoist.connect()", check=False)
        self.assertIn("PermissionDenied", said)
        self.assertIn("your user must be in the socket's group (hoist; here "
                      f"gid {UID})", said)

    def test_a_container_of_root_is_nobody(self):
        self.worker("0:0")()
        row = next(line for line in hoistctl("sessions").splitlines()
                   if "tiny-worker" in line)
        self.assertRegex(row, r" outside +65534 ")


class Stop(Running):
    def test_it_stops_as_the_README_says(self):
        one_pass = self.worker()
        self.assertEqual(one_pass(), self.true_sums())
        said = WORLD.follow(README, "Stop, upgrade")
        self.assertEqual(said[-2].strip(), "hoistd")
        self.assertFalse(list(pathlib.Path("/run/hoist").glob("*.sock")))


if __name__ == "__main__":
    unittest.main()
