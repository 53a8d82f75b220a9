"""What tests of containers share: roots of images, a docker, READMEs.

A test file calls enter() first: it then runs in a mount namespace of its own,
where /etc, /run, /srv and /var/lib may be written to and nobody else sees it.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

ROOTS = pathlib.Path(os.environ.get("HOIST_CONTAINER_ROOTS",
                                    "/var/cache/hoist-test"))
INSIDE = "HOIST_CONTAINER_WORLD"
BASES = {  # Image: what debootstrap adds, and what is set in it.
    "docker.io/library/debian:bookworm-slim": ("slim", [], []),
    "docker.io/library/python:3.12-slim-bookworm": (
        "numpy", ["python3", "python3-pip", "python3-numpy"],
        ["--env", "PIP_BREAK_SYSTEM_PACKAGES=1"]),
}


def lacking(*tools):
    """Why tests cannot run here, or None."""
    if os.getuid() != 0:
        return "needs root"
    missing = [tool for tool in tools if not shutil.which(tool)]
    return f"needs {', '.join(missing)}" if missing else None


def enter(*tools):
    """Goes on in a namespace of its own; returns why it cannot, or None."""
    why = lacking("unshare", "mount", *tools)
    if why or INSIDE in os.environ:
        return why
    done = subprocess.run(["unshare", "--mount", "true"], check=False,
                          capture_output=True, text=True)
    if done.returncode != 0:
        return f"no mount namespaces here: {done.stderr.strip()}"
    os.environ[INSIDE] = tempfile.mkdtemp(prefix="hoist-world-")
    code = subprocess.run(["unshare", "--mount", sys.executable, "-B",
                           *sys.argv], check=False).returncode
    shutil.rmtree(os.environ[INSIDE])
    sys.exit(code)


def own_folders():
    """/etc and /var/lib as they are, /run and /srv empty: all ours.

    SkipTest where a folder of this machine cannot lie over another: in a
    container that is itself such a pile.
    """
    over = pathlib.Path(os.environ[INSIDE])
    for folder in ("/etc", "/var/lib"):
        upper, work = (over / kind / folder[1:] for kind in ("upper", "work"))
        upper.mkdir(parents=True)
        work.mkdir(parents=True)
        how = f"lowerdir={folder},upperdir={upper},workdir={work}"
        done = subprocess.run(
            ["mount", "-t", "overlay", "overlay", "-o", how, folder],
            check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise unittest.SkipTest(f"no overlayfs here: {done.stderr.strip()}")
    for folder in ("/run", "/srv"):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
        os.chmod(folder, 0o755)


def base_root(name, packages):
    """A minimal Debian, made once; CalledProcessError where it cannot be."""
    folder = ROOTS / f"bookworm-{name}"
    if not (folder / ".complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        include = [f"--include={','.join(packages)}"] if packages else []
        subprocess.run(["debootstrap", "--variant=minbase", *include,
                        "bookworm", folder], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (folder / ".complete").touch()
    return folder


class World:
    """Images and containers of one test file, and hoist's archive."""

    def __init__(self, build):
        self.scratch = pathlib.Path(tempfile.mkdtemp(dir=os.environ[INSIDE]))
        self.archive = self.scratch / "hoist"
        subprocess.run([ROOT / "scripts/package.sh", "--from", build, "--dir",
                        self.archive], check=True, stdout=subprocess.DEVNULL)
        tools = self.scratch / "bin"
        tools.mkdir()
        for name in ("docker", "kubectl"):
            (tools / name).write_text(
                f"#!/bin/sh\nexec {sys.executable} -B "
                f"{ROOT}/tests/container/{name}.py \"$@\"\n")
            (tools / name).chmod(0o755)
        self.environment = {
            **os.environ, "PATH": f"{tools}:{os.environ['PATH']}",
            "HOIST_DOCKER_HOME": str(self.scratch / "docker"),
            "TMPDIR": str(self.scratch)}

    def import_bases(self):
        for image, (name, packages, settings) in BASES.items():
            self.run("docker", "import-root", base_root(name, packages), image,
                     *settings)

    def run(self, *command, check=True):
        """One command; what it says, out and err together."""
        done = subprocess.run(
            [str(word) for word in command], check=False, text=True,
            cwd=self.archive, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if check and done.returncode != 0:
            raise AssertionError(f"{command}: {done.stdout}")
        return done.stdout

    def close(self):
        """Unmounts what buildah and runc did, and frees the disk."""
        subprocess.run(["umount", "-R", "-l", self.scratch], check=False,
                       stderr=subprocess.DEVNULL)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def follow(self, readme, heading):
        """A section's commands, as they stand there; what each said."""
        return [self.run("bash", "-euc", line)
                for line in commands(readme, heading)]


def make(build, at_end):
    """This machine's folders for oneself, and a World with roots to build on,
    which `at_end` closes: a class's addClassCleanup, or the module's. SkipTest
    where one of them cannot be."""
    own_folders()
    made = World(build)
    at_end(made.close)
    try:
        made.import_bases()
    except subprocess.CalledProcessError as error:
        raise unittest.SkipTest(f"debootstrap failed: {error}")
    return made


def commands(readme, heading):
    """What is indented by four below a heading, one a command."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)",
                        pathlib.Path(readme).read_text(), re.M | re.S).group(1)
    lines = "\n".join(re.findall(r"^    (.*)$", section, re.M))
    return [line.strip() for line in
            re.sub(r"\\\n\s*", "", lines).splitlines() if line.strip()]
