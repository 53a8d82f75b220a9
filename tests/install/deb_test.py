"""What `cmake --install` installs by component; and the Debian packages: what each
holds, asks for and does, and lintian's word.

deb_test.py BUILD
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
BUILD = str(pathlib.Path(sys.argv[1]).resolve())
del sys.argv[1]

HELD = {
    "hoist": """
etc/hoist/hoistd.toml usr/bin/hoistd usr/bin/hoist-keeper usr/bin/hoistctl
usr/lib/systemd/system/hoistd.service usr/lib/sysusers.d/hoist.conf
usr/share/bash-completion/completions/hoistctl
usr/share/zsh/site-functions/_hoistctl
usr/share/fish/vendor_completions.d/hoistctl.fish
usr/share/man/man1/hoistctl.1.gz usr/share/man/man5/hoistd.toml.5.gz
usr/share/man/man8/hoistd.8.gz usr/share/man/man8/hoist-keeper.8.gz
usr/share/hoist/metrics-loopback.conf usr/share/hoist/prometheus/alerts.yml
usr/share/hoist/grafana/hoist.json
usr/share/doc/hoist/README.md usr/share/doc/hoist/GUIDE.md
usr/share/doc/hoist/SCREENS.md
usr/share/doc/hoist/changelog.gz""",
    "libhoist0": "usr/lib/x86_64-linux-gnu/libhoist.so.0",
    "libhoist-dev": """
usr/include/hoist/hoist.h usr/include/hoist/hoist_c.h
usr/lib/x86_64-linux-gnu/libhoist.so
usr/lib/x86_64-linux-gnu/cmake/hoist/hoist-config.cmake
usr/lib/x86_64-linux-gnu/pkgconfig/hoist.pc""",
    "python3-hoist-client": """
usr/lib/python3/dist-packages/hoist/__init__.py
usr/lib/python3/dist-packages/hoist/nn/_api/attach.py
usr/lib/python3/dist-packages/hoist/py.typed""",
}

COMPONENTS = {
    "daemon": "bin/hoistd bin/hoist-keeper",
    "cli": "bin/hoistctl",
    "service": "lib/systemd/system/hoistd.service lib/sysusers.d/hoist.conf",
    "config": "share/hoist/hoistd.toml",
    "monitoring": """
share/hoist/metrics-loopback.conf share/hoist/prometheus/alerts.yml
share/hoist/grafana/hoist.json""",
    "completions": """
share/bash-completion/completions/hoistctl share/zsh/site-functions/_hoistctl
share/fish/vendor_completions.d/hoistctl.fish""",
    "man": """
share/man/man1/hoistctl.1 share/man/man5/hoistd.toml.5 share/man/man8/hoistd.8
share/man/man8/hoist-keeper.8""",
}


def run(*command):
    return subprocess.run([str(word) for word in command], check=True,
                          capture_output=True, text=True).stdout


def project_version():
    return re.search(r"project\(hoist VERSION (\S+) ",
                     (ROOT / "CMakeLists.txt").read_text())[1]


class Components(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.prefix = pathlib.Path(folder.name)

    def install(self, *options):
        run("cmake", "--install", BUILD, "--prefix", self.prefix, *options)
        return {str(path.relative_to(self.prefix))
                for path in self.prefix.rglob("*") if not path.is_dir()}

    def test_each_has_what_is_its_own(self):
        there = set()
        for component, held in COMPONENTS.items():
            before, there = there, self.install("--component", component)
            self.assertEqual(there - before, set(held.split()), component)

    def test_without_one_all_that_is_not_debians_is_installed(self):
        there = self.install()
        for held in COMPONENTS.values():
            self.assertLessEqual(set(held.split()), there)
        for name in ("libhoist.so", "libhoist.so.0", "hoist-config.cmake",
                     "hoist.pc", "hoist_c.h", "torch.h"):
            self.assertEqual(
                len([one for one in there if one.endswith("/" + name)]), 1)
        self.assertEqual([one for one in there if "dist-packages" in one], [])


@unittest.skipIf(shutil.which("dpkg-deb") is None, "no dpkg-deb here")
class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name)
        run(ROOT / "scripts/package.sh", "--deb", "--release", "7", "--from",
            BUILD, "--dir", cls.path)

    def package(self, name):
        found, = self.path.glob(f"{name}_*.deb")
        return found

    def field(self, name, field):
        return run("dpkg-deb", "-f", self.package(name), field).strip()

    def control(self, name, member):
        folder = self.path / f"control-{name}"
        run("dpkg-deb", "-e", self.package(name), folder)
        return (folder / member).read_text()

    def test_these_are_all_and_each_holds_what_is_its_own(self):
        self.assertEqual({path.name.partition("_")[0]
                          for path in self.path.glob("*.deb")}, set(HELD))
        for name, held in HELD.items():
            folder = self.path / f"files-{name}"
            run("dpkg-deb", "-x", self.package(name), folder)
            self.assertEqual([one for one in held.split()
                              if not os.path.lexists(folder / one)], [], name)
            self.assertEqual(list(folder.rglob("__pycache__")), [])
            for program in folder.glob("usr/bin/*"):
                self.assertNotIn("PATH]", run("readelf", "-d", program))

    def test_their_version_is_the_projects(self):
        for name in HELD:
            self.assertEqual(self.field(name, "Version"),
                             f"{project_version()}-7")

    def test_their_maintainer_is_as_configured(self):
        cache = pathlib.Path(BUILD, "CMakeCache.txt").read_text()
        wanted = re.search(r"^HOIST_PACKAGE_MAINTAINER:STRING=(.*)$", cache,
                           re.M)[1]
        self.assertRegex(wanted, r"^[^<>]+ <\S+@\S+>$")
        for name in HELD:
            self.assertEqual(self.field(name, "Maintainer"), wanted)

    def test_they_ask_for_what_they_need(self):
        self.assertRegex(self.field("hoist", "Depends"), "systemd.*libgrpc")
        # It lives in others' processes, and needs nothing else there.
        self.assertEqual(
            set(re.findall(r"[a-z][\w+-]+(?= \()",
                           self.field("libhoist0", "Depends"))),
            {"libc6", "libstdc++6", "libgcc-s1"})
        of_the_same = f"libhoist0 (= {project_version()}-7)"
        for name in ("libhoist-dev", "python3-hoist-client"):
            self.assertIn(of_the_same, self.field(name, "Depends"))

    def test_the_configuration_is_the_administrators(self):
        self.assertEqual(self.control("hoist", "conffiles").split(),
                         ["/etc/hoist/hoistd.toml"])

    def test_programs_that_link_libhoist_ask_for_its_package(self):
        self.assertRegex(self.control("libhoist0", "shlibs"),
                         r"\Alibhoist 0 libhoist0 \(>= [\d.]+\)\n\Z")
        self.assertEqual(self.control("libhoist0", "triggers"),
                         "activate-noawait ldconfig\n")

    def test_nothing_stops_hoistd_at_an_upgrade(self):
        """It would lose what systemd holds for it."""
        for member in ("postinst", "prerm", "postrm"):
            script = self.control("hoist", member)
            run("sh", "-n", self.path / "control-hoist" / member)
            for line in script.splitlines():
                if re.search(r"\bstop\b", line) and not line.startswith("#"):
                    self.assertEqual(member, "prerm", line)
        self.assertIn('if [ "$1" = remove ]', self.control("hoist", "prerm"))
        self.assertIn("try-restart", self.control("hoist", "postinst"))

    def test_lintian_has_nothing_to_say(self):
        if shutil.which("lintian") is None:
            self.skipTest("no lintian here (scripts/setup.sh --for-tests)")
        done = subprocess.run(
            ["lintian", "--allow-root", "--fail-on", "error,warning",
             *map(str, self.path.glob("*.deb"))], check=False,
            capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main()
