"""hoistd.toml while hoistd runs: `hoistctl config`, `reload` and `log-level`,
models.preload, and `hoistctl doctor`.

running_config_test.py HOISTD [unittest options]
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "../../support"))

from real_daemon import MIB, RealDaemon, until, write_safetensors  # noqa: E402

HOISTD = sys.argv.pop(1)


class Configured(unittest.TestCase):
    def start(self, **options):
        daemon = RealDaemon(HOISTD, **options)
        self.addCleanup(daemon.stop)
        until(lambda: self.serves(daemon))
        return daemon

    def serves(self, daemon):
        try:
            return daemon.status()
        except subprocess.CalledProcessError:
            return None

    def settings(self, daemon, *key):
        found = json.loads(daemon.ctl("config", "--json", *key))["settings"]
        return {one["key"]: one for one in found}

    def change(self, daemon, old, new):
        file = daemon.path / "hoistd.toml"
        text = file.read_text()
        self.assertIn(old, text)
        file.write_text(text.replace(old, new))

    def refused(self, daemon, *arguments):
        with self.assertRaises(subprocess.CalledProcessError) as raised:
            daemon.ctl(*arguments)
        return raised.exception.stderr

    def write_model(self, daemon, name, mib=2):
        path = daemon.path / f"{name}.safetensors"
        write_safetensors(path, {
            f"layers.{at}.w": ("U8", [MIB], os.urandom(MIB))
            for at in range(mib)})
        return path


class Config(Configured):
    def test_each_key_has_its_value_and_where_it_is_from(self):
        daemon = self.start(extra='[quota]\nplans = 7\n')
        found = self.settings(daemon)
        self.assertEqual(found["quota.plans"]["value"], "7")
        lines = (daemon.path / "hoistd.toml").read_text().splitlines()
        self.assertEqual(
            found["quota.plans"]["source"],
            f"{daemon.path}/hoistd.toml:{lines.index('plans = 7') + 1}")
        self.assertEqual(found["quota.models"]["source"], "default")
        self.assertEqual(found["disk.io"]["value"], '"auto"')
        self.assertNotIn("auto", found["disk.io"]["comes_to"])
        self.assertTrue(found["disk.io"]["comes_to"])
        self.assertIn(found["host.huge_pages"]["comes_to"],
                      ("hugetlb", "transparent", "small"))
        shown = daemon.ctl("config")
        for key in found:
            self.assertIn(f"\n{key} ", shown)

    def test_a_table_or_a_key_alone(self):
        daemon = self.start()
        self.assertEqual(list(self.settings(daemon, "log")),
                         ["log.level", "log.sink"])
        self.assertEqual(list(self.settings(daemon, "host.pool")),
                         ["host.pool"])
        self.assertIn("did you mean host.pool?",
                      self.refused(daemon, "config", "host.pol"))


class Reload(Configured):
    def test_what_changes_and_what_needs_a_restart(self):
        daemon = self.start(extra="[quota]\nplans = 7\n")
        self.assertEqual(daemon.ctl("reload"), "nothing has changed\n")
        self.change(daemon, "plans = 7", "plans = 8")
        self.change(daemon, 'in_place = "auto"', "in_place = 0")
        self.assertEqual(json.loads(daemon.ctl("reload", "--json")), {
            "changed": ["quota.plans"], "needs_restart": ["host.in_place"]})
        found = self.settings(daemon)
        self.assertEqual(found["quota.plans"]["value"], "8")
        self.assertEqual(found["host.in_place"]["value"], '"auto"')
        self.assertEqual(found["host.in_place"]["pending"], '"0"')
        # It is not forgotten by the next one, and taken back it is nothing.
        self.assertIn("needs a restart: host.in_place", daemon.ctl("reload"))
        self.change(daemon, "in_place = 0", 'in_place = "auto"')
        self.assertEqual(daemon.ctl("reload"), "nothing has changed\n")
        self.assertFalse(self.settings(daemon)["host.in_place"]["pending"])

    def test_an_error_changes_nothing(self):
        daemon = self.start(extra="[quota]\nplans = 7\n")
        self.change(daemon, "plans = 7", "plans = 9\nmodel = 1")
        self.assertIn("did you mean quota.models?",
                      self.refused(daemon, "reload"))
        self.assertEqual(self.settings(daemon)["quota.plans"]["value"], "7")

    def test_roots_are_others_at_once(self):
        daemon = self.start(extra='[models]\nroots = ["/nowhere"]\n')
        path = str(self.write_model(daemon, "m"))
        self.assertIn("models.roots", self.refused(daemon, "load", path))
        self.change(daemon, "/nowhere", str(daemon.path))
        self.assertIn("changed: models.roots", daemon.ctl("reload"))
        self.assertIn("loaded m", daemon.ctl("load", path))
        self.change(daemon, f'roots = ["{daemon.path}"]', "roots = []")
        os.kill(daemon.process.pid, signal.SIGHUP)
        until(lambda: self.settings(daemon)["models.roots"]["value"] == "[]")
        self.assertIn("models.roots", self.refused(daemon, "load", path))


class LogLevel(Configured):
    def test_it_lasts_until_it_is_read_again(self):
        daemon = self.start()
        daemon.ctl("log-level", "error")
        found = self.settings(daemon)["log.level"]
        self.assertEqual((found["value"], found["source"], found["pending"]),
                         ('"error"', "hoistctl log-level", ""))
        daemon.ctl("drain", "--resume")
        self.assertNotIn("act=resume", daemon.log_text())
        daemon.ctl("reload")
        self.assertEqual(self.settings(daemon)["log.level"]["value"], '"info"')
        daemon.ctl("drain", "--resume")
        self.assertIn("act=resume", daemon.log_text())

    def test_there_are_four(self):
        daemon = self.start()
        self.assertIn("debug", self.refused(daemon, "log-level", "loud"))


class Preload(Configured):
    def models(self, daemon):
        found = json.loads(daemon.ctl("models", "--json"))["models"]
        return {one["name"]: one for one in found}

    def on_host(self, daemon, name, mib):
        return until(lambda: int(self.models(daemon).get(name, {}).get(
            "host_bytes", 0)) >= mib * MIB)

    def restarted(self, daemon, extra):
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.wait(timeout=60)
        file = daemon.path / "hoistd.toml"
        file.write_text(file.read_text() + extra)
        daemon.start()
        until(lambda: self.serves(daemon))

    def test_what_is_named_is_there_after_each_start(self):
        daemon = self.start()
        one, two = (self.write_model(daemon, name) for name in ("one", "two"))
        self.restarted(daemon, f"""
[[models.preload]]
path = "{one}"
pin = true
[[models.preload]]
path = "{two}"
name = "second"
tier = "device"
""")
        self.on_host(daemon, "one", 2)
        until(lambda: int(self.models(daemon).get("second", {}).get(
            "device_bytes", 0)) >= 2 * MIB)
        until(lambda: daemon.tier("HOST")["pinned_bytes"] >= 2 * MIB)
        # What is pinned is not evicted.
        daemon.ctl("evict", "one", "--tier", "host")
        self.assertGreaterEqual(
            int(self.models(daemon)["one"]["host_bytes"]), 2 * MIB)
        daemon.kill()
        daemon.start()
        until(lambda: self.serves(daemon))
        self.on_host(daemon, "one", 2)

    def test_what_is_not_there_yet_is_waited_for(self):
        daemon = self.start()
        late = daemon.path / "late.safetensors"
        never = daemon.path / "never.safetensors"
        never.write_bytes(b"no model")
        other = self.write_model(daemon, "other")
        self.change(daemon, "[log]", "".join(
            f'[[models.preload]]\npath = "{path}"\n'
            for path in (never, late, other)) + "[log]")
        self.assertIn("changed: models.preload", daemon.ctl("reload"))
        self.on_host(daemon, "other", 2)  # Nobody waits for another.
        notes = until(lambda: [
            note for note in daemon.status()["notes"] if str(late) in note])
        self.assertIn("tried again", notes[0])
        self.write_model(daemon, "late")
        self.on_host(daemon, "late", 2)
        notes = [note for note in daemon.status()["notes"]
                 if str(never) in note]
        self.assertEqual(len(notes), 1, notes)
        self.assertNotIn("tried again", notes[0])


class Doctor(Configured):
    def findings(self, daemon, *arguments):
        """Those that are not good, by name; hoistctl's exit status says if
        there are any."""
        try:
            said, code = daemon.ctl("doctor", "--json", *arguments), 0
        except subprocess.CalledProcessError as error:
            said, code = error.stdout, error.returncode
        found = {one["what"]: one for one in json.loads(said)["findings"]}
        amiss = [one for one in found.values()
                 if one["state"] == "STATE_DEGRADED"]
        self.assertEqual(code, 4 if amiss else 0)
        self.assertTrue(all(one["cure"] for one in amiss), amiss)
        return found

    def test_what_is_amiss_has_a_cure_and_a_status(self):
        daemon = self.start()
        found = self.findings(daemon, "--no-disk")
        self.assertEqual(found["outliving"]["state"], "STATE_DEGRADED")
        self.assertNotIn("disk rate", found)

    def test_a_model_is_read_for_the_disks_rate(self):
        daemon = self.start()
        self.assertIn("name a file", self.findings(daemon)["disk rate"]["found"])
        path = self.write_model(daemon, "m")
        for where in (path, daemon.path):
            rate = self.findings(daemon, "--disk", str(where))["disk rate"]
            self.assertIn(f"of {path}", rate["found"])
            self.assertIn("2.0 MiB", rate["found"])


if __name__ == "__main__":
    unittest.main()
