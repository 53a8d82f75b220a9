"""What deploy/ ships for metrics is right, and names what hoistd serves.

rules_test.py HOISTD [unittest options]
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from scrape import HERE, ROOT, get, serves  # noqa: E402
from real_daemon import RealDaemon, until  # noqa: E402

HOISTD = sys.argv.pop(1)
RULES = ROOT / "deploy/prometheus/alerts.yml"
DASHBOARD = ROOT / "deploy/grafana/hoist.json"
UNIT = ROOT / "deploy/hoistd.service"
DROP_IN = ROOT / "deploy/metrics-loopback.conf"
METRIC = re.compile(r"\b(?:hoist|process)_[a-z_]+\b")
# name{labels}, to hold the labels that are compared to those that there are.
SELECTOR = re.compile(r"\b((?:hoist|process)_[a-z_]+)\{([^}]*)\}")
OF_PROMETHEUS = {"job", "instance", "alertname"}


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False,
                          **options)


def expressions():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    yield from (target["expr"] for panel in panels
                for target in panel.get("targets", []))
    yield from (line.split("expr:", 1)[1]
                for line in RULES.read_text().splitlines() if "expr:" in line)


class Rules(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        daemon = RealDaemon(HOISTD)
        path = str(daemon.path / "hoistd.metrics.sock")
        until(lambda: serves(path))
        cls.text = get(path)[1]
        daemon.stop()
        cls.served, cls.labels = set(), {}
        for line in cls.text.splitlines():
            if line.startswith("#"):
                continue
            name = METRIC.match(line).group()
            cls.served.add(name)
            cls.labels.setdefault(name, set()).update(
                re.findall(r'([a-z_]+)="', line))

    def test_what_is_asked_for_is_served(self):
        asked = set()
        for expression in expressions():
            asked |= set(METRIC.findall(expression))
            for name, labels in SELECTOR.findall(expression):
                used = set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", labels))
                self.assertLessEqual(
                    used - OF_PROMETHEUS, self.labels[name], expression)
        self.assertEqual(asked - self.served, set())
        self.assertGreater(len(asked), 25)

    def test_values_of_labels_that_are_asked_for_exist(self):
        found = 0
        for expression in expressions():
            for name, labels in SELECTOR.findall(expression):
                for label, values in re.findall(r'([a-z_]+)=~?"([^"$]+)"',
                                                labels):
                    if label in OF_PROMETHEUS:
                        continue
                    for value in values.split("|"):
                        self.assertRegex(
                            self.text, rf'{name}{{.*{label}="{value}"',
                            expression)
                        found += 1
        self.assertGreater(found, 15)

    def test_what_is_served_is_on_the_dashboard(self):
        shown = set(METRIC.findall(DASHBOARD.read_text()))
        parts = re.compile(r"_(bucket|sum|count)$")
        left_out = {"hoist_tier_used_bytes", "hoist_tier_capacity_bytes",
                    "process_virtual_memory_bytes",
                    "process_start_time_seconds"}
        for name in self.served - left_out:
            self.assertTrue(name in shown or
                            parts.sub("_bucket", name) in shown, name)

    @unittest.skipIf(shutil.which("promtool") is None, "needs promtool")
    def test_rules_are_right(self):
        said = run("promtool", "check", "rules", RULES)
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)

    @unittest.skipIf(shutil.which("promtool") is None, "needs promtool")
    def test_alerts_fire_when_they_should(self):
        with tempfile.TemporaryDirectory() as folder:
            for file in (RULES, HERE / "alerts_test.yml"):
                shutil.copy(file, folder)
            said = run("promtool", "test", "rules", "alerts_test.yml",
                       cwd=folder)
            self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
        # And each is in the test.
        tested = (HERE / "alerts_test.yml").read_text()
        for alert in re.findall(r"alert: (\w+)", RULES.read_text()):
            self.assertIn(f'alertname="{alert}"', tested)

    @unittest.skipIf(shutil.which("systemd-analyze") is None,
                     "needs systemd-analyze")
    def test_the_drop_in_opens_loopback_and_nothing_else(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            unit = UNIT.read_text()
            # Its user need not be here, nor its program in the path.
            unit = unit.replace("ExecStart=hoistd", f"ExecStart={HOISTD}")
            unit = re.sub(r"(?m)^(User|Group)=.*\n", "", unit)
            (folder / "hoistd.service").write_text(unit)
            (folder / "hoistd.service.d").mkdir()
            shutil.copy(DROP_IN, folder / "hoistd.service.d/")
            said = run("systemd-analyze", "verify", "--man=no",
                       "--recursive-errors=no", folder / "hoistd.service")
            self.assertNotIn("metrics-loopback.conf", said.stderr)
            self.assertNotIn("Unknown", said.stderr)
            self.assertEqual(said.returncode, 0, said.stderr)
            # A wrong word in it would be found.
            broken = folder / "hoistd.service.d/metrics-loopback.conf"
            broken.write_text("[Service]\nRestrictAddressFamilys=AF_INET\n")
            said = run("systemd-analyze", "verify", "--man=no",
                       "--recursive-errors=no", folder / "hoistd.service")
            self.assertIn("RestrictAddressFamilys", said.stderr)
        # What it adds to: the unit's own stays refused but for these.
        self.assertIn("\nRestrictAddressFamilies=AF_UNIX\n", UNIT.read_text())
        self.assertIn("\nIPAddressDeny=any\n", UNIT.read_text())
        words = [line for line in DROP_IN.read_text().splitlines()
                 if line and not line.startswith(("#", "["))]
        self.assertEqual(words, ["RestrictAddressFamilies=AF_INET AF_INET6",
                                 "IPAddressAllow=localhost"])


if __name__ == "__main__":
    unittest.main()
