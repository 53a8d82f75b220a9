"""Completion in the real shells: what Tab makes of a line that is typed.

completion_test.py HOISTD HOISTCTL LIBHOIST. A shell runs on a terminal of its
own, as it is installed; a `hoistctl` in its PATH writes down what it was called
with once the line is entered.
"""

import os
import pathlib
import pty
import select
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
sys.path.insert(0, str(ROOT / "client/python"))
from real_daemon import MIB, RealDaemon, write_safetensors  # noqa: E402

HOISTD, HOISTCTL, os.environ["HOIST_LIBRARY"] = map(
    os.path.abspath, sys.argv[1:4])
del sys.argv[1:4]
PROMPT = b"ready-for-a-line "
LIMIT_S = 60
# What a client may call a model; nothing of it may run.
EVIL = "evil $(touch ran) name"

INSTEAD = """#!/bin/sh
if [ "$1" = __complete ]; then exec {hoistctl} "$@"; fi
for word; do printf '<%s>' "$word"; done >{calls}
echo >{calls}
"""
SETUP = {
    "bash": ["PS1='{prompt}'", ". {folder}/of_bash"],
    "zsh": ["fpath=({folder}/of_zsh $fpath)",
            "autoload -Uz compinit; compinit -u -d {folder}/zcompdump",
            "PROMPT='{prompt}'"],
    "fish": ["function fish_prompt; printf '{prompt}'; end",
             "set -g fish_greeting", "source {folder}/of_fish"],
}
COMMAND = {"bash": ["bash", "--noprofile", "--rcfile", "{setup}", "-i"],
           "zsh": ["zsh", "-i"],
           "fish": ["fish", "--no-config", "-i", "-C", "source {setup}"]}

# What is typed, with Tab; and the words that hoistctl is called with.
LINES = {
    "a command": ("hoistctl statu\t", ["status"]),
    "behind an option": ("hoistctl --json pla\t", ["--json", "plans"]),
    "an option": ("hoistctl drain --resu\t", ["drain", "--resume"]),
    "an option of all": ("hoistctl models --js\t", ["models", "--json"]),
    "an option's value": ("hoistctl evict tiny --tier ho\t",
                          ["evict", "tiny", "--tier", "host"]),
    "a value behind =": ("hoistctl load . --readers=ev\t",
                         ["load", ".", "--readers=everyone"]),
    "a choice": ("hoistctl completion fi\t", ["completion", "fish"]),
    "a model": ("hoistctl groups tin\t", ["groups", "tiny"]),
    # Where bash begins another word.
    "a model with a colon": ("hoistctl groups team:b\t",
                             ["groups", "team:blue"]),
    "a model that needs quotes": ("hoistctl groups evil\t", ["groups", EVIL]),
    "a group": ("hoistctl evict tiny layers.1\t",
                ["evict", "tiny", "layers.1"]),
    "a plan": ("hoistctl share \t", ["share", "{plan}"]),
    "a file to write": ("hoistctl features --all --out checkp\t",
                        ["features", "--all", "--out",
                         "checkpoint.safetensors"]),
    "a file": ("hoistctl load checkp\t", ["load", "checkpoint.safetensors"]),
}


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, command, folder, environment):
        self.said = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, environment)

    def await_prompt(self):
        while PROMPT not in self.said:
            if not select.select([self.fd], [], [], LIMIT_S)[0]:
                raise AssertionError(f"no prompt: {self.said!r}")
            self.said += os.read(self.fd, 65536)
        self.said = self.said.rpartition(PROMPT)[2]

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        os.close(self.fd)  # Which hangs up.
        os.waitpid(self.pid, 0)


class Completion:
    @classmethod
    def setUpClass(cls):
        if shutil.which(cls.shell) is None:
            raise unittest.SkipTest(f"no {cls.shell} here")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.daemon = RealDaemon(HOISTD)
        cls.addClassCleanup(cls.daemon.stop)
        cls.serve()
        cls.write_files()

    @classmethod
    def serve(cls):
        import hoist
        session = hoist.connect(cls.daemon.socket, connect_deadline=LIMIT_S)
        cls.addClassCleanup(session.close)
        for model in ("tiny", "team:blue", EVIL):
            for group in ("layers.0", "layers.1", "norm"):
                made = session.publish(model, group,
                                       {"w": memoryview(bytes(4096))})
        plan = session.set_plan(made, budget=3 * MIB, order=made.groups)
        cls.addClassCleanup(plan.__exit__, None, None, None)
        cls.plan = str(plan.info.id)

    @classmethod
    def write_files(cls):
        write_safetensors(cls.folder / "checkpoint.safetensors",
                          {"w": ("U8", [4], b"four")})
        (cls.folder / "of_zsh").mkdir()
        for shell, name in (("bash", "of_bash"), ("zsh", "of_zsh/_hoistctl"),
                            ("fish", "of_fish")):
            (cls.folder / name).write_text(subprocess.run(
                [HOISTCTL, "completion", shell], check=True,
                capture_output=True, text=True).stdout)
        cls.calls = cls.folder / "calls"
        os.mkfifo(cls.calls)
        program = cls.folder / "bin/hoistctl"
        program.parent.mkdir()
        program.write_text(
            INSTEAD.format(hoistctl=HOISTCTL, calls=cls.calls))
        program.chmod(0o755)
        setup = cls.folder / (".zshrc" if cls.shell == "zsh" else "setup")
        setup.write_text("".join(
            line.format(folder=cls.folder, prompt=PROMPT.decode()) + "\n"
            for line in SETUP[cls.shell]))
        cls.command = [word.format(setup=setup) for word in COMMAND[cls.shell]]

    def entered(self, text):
        """What hoistctl is called with, once this is typed and entered."""
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith("HOIST_")}
        terminal = Terminal(self.command, self.folder, {
            **kept, "PATH": f"{self.folder}/bin:{kept['PATH']}",
            "HOIST_SOCKET": self.daemon.socket, "TERM": "dumb",
            "HOME": str(self.folder), "ZDOTDIR": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder), "LC_ALL": "C.UTF-8"})
        try:
            terminal.await_prompt()
            # Read and write: it opens at once, and nobody's end closes it.
            calls = os.open(self.calls, os.O_RDWR)
            try:
                terminal.type(text)
                terminal.type("\r")
                said = b""
                while not said.endswith(b"\n"):
                    ready = select.select([calls, terminal.fd], [], [], LIMIT_S)
                    if terminal.fd in ready[0]:
                        terminal.said += os.read(terminal.fd, 65536)
                    if calls in ready[0]:
                        said += os.read(calls, 65536)
                    self.assertTrue(any(ready), terminal.said)
            finally:
                os.close(calls)
        finally:
            terminal.end()
        return said.decode().strip()

    def test_lines_become_what_is_meant(self):
        for what, (typed, words) in LINES.items():
            with self.subTest(what):
                wanted = "".join(f"<{word}>" for word in words)
                self.assertEqual(self.entered(typed),
                                 wanted.replace("{plan}", self.plan))
        self.assertFalse((self.folder / "ran").exists())

    def test_what_nobody_knows_stays_as_it_is(self):
        for typed in ("groups nobody", "frobnicate x", "evict tiny --nothing"):
            words = "".join(f"<{word}>" for word in typed.split())
            self.assertEqual(self.entered(f"hoistctl {typed}\t"), words)


class InBash(Completion, unittest.TestCase):
    shell = "bash"


class InZsh(Completion, unittest.TestCase):
    shell = "zsh"


class InFish(Completion, unittest.TestCase):
    shell = "fish"


if __name__ == "__main__":
    unittest.main()
