"""deploy/container/seccomp.json: what it lets through, and what it refuses.

seccomp_test.py BUILD [unittest options]
"""

import json
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import world  # noqa: E402

WHY_NOT = world.enter("buildah", "runc", "debootstrap")

from real_daemon import MIB, until  # noqa: E402

BUILD = str(pathlib.Path(sys.argv.pop(1)).resolve())
DEPLOY = world.ROOT / "deploy"
PROFILE = DEPLOY / "container/seccomp.json"
# What podman and buildah allow, in Debian and Ubuntu.
RUNTIMES = pathlib.Path("/usr/share/containers/seccomp.json")
EPERM, EAFNOSUPPORT = "1", "97"

# As root with the rights to do it, so that only the profile is in the way:
# the call's number and arguments, and what it must say.
REFUSED = {
    "mount": ("165,0,0,0,0,0", EPERM),
    "ptrace": ("101,0,0,0,0", EPERM),
    "unshare": ("272,0x20000", EPERM),
    "setns": ("308,-1,0", EPERM),
    "keyctl": ("250,0,-3,0", EPERM),
    "bpf": ("321,99,0,0", EPERM),
    "process_vm_readv": ("310,1,0,0,0,0,0", EPERM),
    "kexec_load": ("246,0,1000,0,0", EPERM),
    "socket of IPv4": ("41,2,1,0", EAFNOSUPPORT),
}
RIGHTS = ["SYS_ADMIN", "SYS_PTRACE", "SYS_BOOT", "BPF"]
WORLD = None


def profile():
    return json.loads(PROFILE.read_text())


def added(rules):
    return {name for rule in rules if rule["comment"].startswith("added: ")
            for name in rule["names"]}


class Text(unittest.TestCase):
    """The file as it stands; needs no container."""

    def test_what_is_not_added_is_what_runtimes_allow(self):
        if not RUNTIMES.exists():
            self.skipTest(f"needs {RUNTIMES}")
        theirs = {name for rule in json.loads(RUNTIMES.read_text())["syscalls"]
                  if rule["action"] == "SCMP_ACT_ALLOW"
                  for name in rule["names"]}
        rules = profile()["syscalls"]
        ours = {name for rule in rules for name in rule["names"]}
        self.assertEqual(ours - added(rules) - theirs, set())

    def test_no_call_is_named_twice_with_the_same_action(self):
        seen = [(name, rule["action"]) for rule in profile()["syscalls"]
                for name in rule["names"]]
        self.assertEqual(len(seen), len(set(seen)))

    def test_the_README_gives_a_reason_for_each_that_is_added(self):
        rows = re.findall(r"^  \| (\w+(?:, \w+)*) \| (.+?) \|",
                          (DEPLOY / "container/README.md").read_text(), re.M)
        named = set()
        for names, reason in rows:
            first, *others = names.split(", ")
            if first == "added":
                continue
            self.assertTrue(reason)
            stem = first.rpartition("_")[0]
            named |= {first} | {stem + other for other in others}
        self.assertEqual(named, added(profile()["syscalls"]))

    def test_its_sockets_are_those_of_the_unit(self):
        unit = (DEPLOY / "hoistd.service").read_text()
        self.assertIn("\nRestrictAddressFamilies=AF_UNIX\n", unit)
        allowed = [rule["args"] for rule in profile()["syscalls"]
                   if "socket" in rule["names"] and
                   rule["action"] == "SCMP_ACT_ALLOW"]
        self.assertEqual([(arg["value"], arg["op"]) for args in allowed
                          for arg in args], [(1, "SCMP_CMP_EQ")])


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Real(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.world = world.make(BUILD, cls.addClassCleanup)
        cls.world.follow(DEPLOY / "container/README.md", "Build")
        cls.bare = cls.world.scratch / "bare.json"
        without = profile()
        without["syscalls"] = [rule for rule in without["syscalls"]
                               if not rule["comment"].startswith("added: ")]
        cls.bare.write_text(json.dumps(without))

    def call(self, arguments, *options):
        """What one system call in a container of root's returns, and errno."""
        return self.world.run(
            "docker", "run", "--rm", "--user", "0:0", *options,
            "--entrypoint", "perl", "hoist", "-e",
            f"$! = 0; $r = syscall({arguments}); print $r < 0 ? $! + 0 : 'ok'")

    def test_what_nobody_needs_is_refused(self):
        rights = [word for right in RIGHTS for word in ("--cap-add", right)]
        for name, (arguments, wanted) in REFUSED.items():
            with self.subTest(name):
                free = self.call(arguments, *rights)
                if name != "kexec_load":  # Which some kernels refuse to all.
                    self.assertNotEqual(free, wanted, "even without a profile")
                self.assertEqual(self.call(
                    arguments, *rights, "--security-opt", f"seccomp={PROFILE}"),
                    wanted)

    def test_mbind_is_there_because_it_is_added(self):
        call = "237,0,0,0,0,0,0"
        self.assertEqual(self.call(call, "--security-opt",
                                   f"seccomp={PROFILE}"), "ok")
        self.assertEqual(self.call(call, "--security-opt",
                                   f"seccomp={self.bare}"), EPERM)

    def start(self, file, io):
        """hoistd under that profile; what it says of itself."""
        self.addCleanup(self.world.run, "docker", "rm", "-f", "hoistd",
                        check=False)
        self.world.run(
            "docker", "run", "-d", "--name", "hoistd", "--cap-drop", "ALL",
            "--security-opt", "no-new-privileges", "--security-opt",
            f"seccomp={file}", "hoist", "--set", f"disk.io={io}", "--set",
            f"host.pool={64 * MIB}", "--set", f"device.pool={256 * MIB}")

    def status(self):
        said = self.world.run("docker", "exec", "hoistd", "hoistctl", "status",
                              check=False)
        return said if "disk I/O" in said else None

    def test_hoistd_reads_by_io_uring(self):
        self.start(PROFILE, "io_uring")
        said = until(self.status, seconds=30)
        self.assertRegex(said, r"disk I/O: io_uring")
        self.assertNotIn("mbind", said)

    def test_without_what_is_added_it_does_not(self):
        self.start(self.bare, "io_uring")
        until(lambda: "io_uring_setup: Operation not permitted" in
              self.world.run("docker", "logs", "hoistd"), seconds=30)

    def test_auto_takes_threads_then_and_says_so(self):
        self.start(self.bare, "auto")
        said = until(self.status, seconds=30)
        self.assertRegex(said, r"disk I/O: threads")
        self.assertIn("io_uring", said.split("not to be had:")[1])


if __name__ == "__main__":
    unittest.main()
