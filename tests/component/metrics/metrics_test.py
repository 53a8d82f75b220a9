"""A real hoistd's metrics, as curl, promtool and Prometheus read them.

metrics_test.py HOISTD [unittest options]; needs HOIST_LIBRARY and PYTHONPATH.
"""

import json
import os
import pathlib
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import unittest
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from scrape import Samples, scrape, serves  # noqa: E402
import hoist  # noqa: E402
from real_daemon import (MIB, RealDaemon, block_model, until,  # noqa: E402
                         write_safetensors)

HOISTD = sys.argv.pop(1)


def missing(*programs):
    gone = [name for name in programs if shutil.which(name) is None]
    return f"needs {' and '.join(gone)}" if gone else ""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Metrics(unittest.TestCase):
    def start(self, **options):
        self.daemon = RealDaemon(HOISTD, **options)
        self.addCleanup(self.daemon.stop)
        self.model = str(self.daemon.path / "m.safetensors")
        write_safetensors(self.model, block_model())
        self.socket = self.daemon.path / "hoistd.metrics.sock"
        until(lambda: serves(str(self.socket)))

    def connect(self):
        return hoist.connect(self.daemon.socket, connect_deadline=30)

    def comes(self, name, value, **labels):
        """Until a scrape says so: one picture serves for half a second."""
        until(lambda: scrape(self.daemon).of(name, **labels) == value)

    @unittest.skipIf(missing("curl", "promtool"), missing("curl", "promtool"))
    def test_curl_and_promtool_read_it(self):
        self.start()
        self.assertEqual(stat.S_IMODE(self.socket.stat().st_mode), 0o660)
        text = subprocess.run(
            ["curl", "-sSf", "--unix-socket", self.socket,
             "http://hoist/metrics"], check=True, capture_output=True).stdout
        said = subprocess.run(["promtool", "check", "metrics"], input=text,
                              capture_output=True, check=False)
        self.assertEqual((said.returncode, said.stderr), (0, b""))
        samples = Samples(text.decode())
        version = subprocess.run([HOISTD, "--version"], capture_output=True,
                                 text=True, check=True).stdout.split()[1]
        self.assertEqual(samples.of("hoist_build_info", version=version), 1)
        self.assertGreater(samples.of("process_resident_memory_bytes"), MIB)

    @unittest.skipIf(os.getuid() != 0, "another user is needed")
    def test_who_is_no_admin_may_not_read(self):
        """They name all users' models."""
        self.start(mode="0666")
        self.daemon.path.chmod(0o755)
        ask = ("import socket, sys\n"
               "client = socket.socket(socket.AF_UNIX)\n"
               "client.connect(sys.argv[1])\n"
               "client.sendall(b'GET /metrics HTTP/1.1\\r\\n\\r\\n')\n"
               "client.shutdown(socket.SHUT_WR)\n"
               "while part := client.recv(65536):\n"
               "    sys.stdout.buffer.write(part)\n")
        said = subprocess.run(["/usr/bin/python3", "-c", ask, self.socket],
                              user=54321, cwd="/", capture_output=True,
                              text=True, check=True).stdout
        self.assertTrue(said.startswith("HTTP/1.1 403 Forbidden"), said)
        self.assertIn("you are uid 54321", said)
        self.assertNotIn("hoist_", said)

    def test_what_workers_do_is_seen(self):
        self.start(extra='[models]\nroots = ["/"]')
        device = {"tier": "device", "device": "emulated-0"}
        self.assertEqual(scrape(self.daemon).of(
            "hoist_tier_bytes", held_by="free", **device), 8 * MIB)
        self.daemon.ctl("load", self.model, "--name", "m", "--tier", "host")
        self.comes("hoist_models", 1)
        before = scrape(self.daemon)
        read = before.of("hoist_file_read_bytes_total")
        self.assertGreaterEqual(read, 6 * MIB)
        self.assertGreaterEqual(
            before.of("hoist_model_bytes", model="m", tier="host"), 6 * MIB)
        worker = self.connect()
        model = worker.register(self.model, "m")
        names = [group.name for group in model.groups]
        block = next(n for n in names if "0" in n)
        lease = worker.stage(model[block], deadline=30)
        self.comes("hoist_leases", 1)
        after = scrape(self.daemon)
        self.assertEqual(after.of("hoist_sessions"), 1)
        self.assertEqual(after.of("hoist_stages_total", **{"from": "host"}), 1)
        self.assertEqual(
            after.of("hoist_stage_seconds_count", **{"from": "host"}), 1)
        self.assertEqual(after.of("hoist_file_read_bytes_total"), read)
        leased = after.of("hoist_tier_bytes", held_by="leased", **device)
        self.assertGreaterEqual(leased, MIB)
        self.assertGreaterEqual(
            after.of("hoist_link_bytes_total", **{"class": "leases"}), MIB)
        lease.release()
        self.comes("hoist_tier_bytes", leased, held_by="cache", **device)
        lease = worker.stage(model[block], deadline=30)  # A hit.
        self.comes("hoist_stages_total", 1, **{"from": "device"})
        self.assertEqual(scrape(self.daemon).of("hoist_leases"), 1)
        worker.close()
        self.comes("hoist_sessions", 0)
        self.comes("hoist_leases", 0)
        self.daemon.ctl("evict", "m")
        self.comes("hoist_evictions_total", 1, tier="device", reason="admin")
        self.comes("hoist_tier_bytes", 8 * MIB, held_by="free", **device)

    def test_a_worker_that_dies_is_seen(self):
        self.start()
        worker = subprocess.Popen(
            [sys.executable, "-c", "import hoist, sys\n"
             f"s = hoist.connect({self.daemon.socket!r})\n"
             f"m = s.register({self.model!r}, 'm')\n"
             "l = s.stage(m[m.groups[0].name], deadline=30)\n"
             "print(1, flush=True)\nsys.stdin.read()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.assertEqual(worker.stdout.readline(), b"1\n")
        self.comes("hoist_leases", 1)
        worker.kill()
        worker.communicate()
        self.comes("hoist_sessions", 0)
        self.comes("hoist_leases", 0)

    def test_evictions_and_refusals_have_their_reasons(self):
        self.start(pool=4 * MIB)
        with self.connect() as worker:
            model = worker.register(self.model, "m")
            blocks = [g.name for g in model.groups if g.image_bytes > MIB // 2]
            for name in blocks:
                worker.stage(model[name], deadline=30).release()
            until(lambda: scrape(self.daemon).of(
                "hoist_evictions_total", tier="device", reason="room") > 0)
            leases = []
            with self.assertRaises(hoist.ResourceExhausted):
                for name in blocks:
                    leases.append(worker.stage(model[name], deadline=0))
            until(lambda: scrape(self.daemon).of(
                "hoist_refusals_total", code="resource_exhausted") > 0)
            self.assertGreater(
                scrape(self.daemon).of("hoist_stage_refusals_total"), 0)

    def test_models_beyond_the_bound_are_one(self):
        self.start(extra="[metrics]\nmodels = 3")
        with self.connect() as worker:
            for number in range(40):
                model = worker.register(self.model, f"name-{number}")
                if number < 5:
                    worker.prefetch(model.groups[:1])
            self.comes("hoist_models", 40)
            samples = scrape(self.daemon)
            names = {dict(has)["model"] for name, has in samples
                     if name == "hoist_model_bytes"}
            self.assertEqual(len(names), 4)
            self.assertIn("other", names)
            self.assertLess(len(samples), 400)

    def test_what_drains_says_so(self):
        self.start()
        self.daemon.ctl("drain", "--deadline", "0")
        self.comes("hoist_draining", 1)
        self.daemon.ctl("drain", "--resume")
        self.comes("hoist_draining", 0)

    def test_beyond_loopback_it_does_not_start(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
            config.write('[metrics]\nlisten = "0.0.0.0:9464"\n')
            config.flush()
            said = subprocess.run([HOISTD, "--config", config.name],
                                  capture_output=True, text=True, check=False)
        self.assertNotEqual(said.returncode, 0)
        self.assertIn(":2: metrics.listen: ", said.stderr)
        self.assertIn("node agent", said.stderr)

    def test_a_port_that_is_taken_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            daemon = RealDaemon(
                HOISTD, extra=f'[metrics]\nlisten = "127.0.0.1:{port}"')
            self.assertEqual(daemon.process.wait(timeout=60), 1)
            said = daemon.log_text()
            daemon.stop()
        self.assertIn("[metrics]", said)
        self.assertIn("free that port", said)

    @unittest.skipIf(missing("prometheus"), missing("prometheus"))
    def test_prometheus_scrapes_it(self):
        port, own = free_port(), free_port()
        self.start(extra=f'[metrics]\nlisten = "127.0.0.1:{port}"')
        folder = pathlib.Path(tempfile.mkdtemp(prefix="hoist-prometheus-"))
        self.addCleanup(shutil.rmtree, folder)
        (folder / "p.yml").write_text(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{pathlib.Path(__file__).parents[3]}/deploy/prometheus/alerts.yml]
scrape_configs:
  - job_name: hoist
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
""")
        with open(folder / "log", "wb") as log:
            server = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/p.yml",
                 f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address=127.0.0.1:{own}"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL)

        def end():
            server.kill()
            server.wait()
        self.addCleanup(end)

        def ask(path, **query):
            """None: it is not up yet, or has nothing yet."""
            self.assertIsNone(server.poll(), (folder / "log").read_text())
            url = f"http://127.0.0.1:{own}/api/v1/{path}?" + \
                urllib.parse.urlencode(query)
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    return json.load(answer)["data"]
            except OSError:
                return None

        def value(query):
            found = ask("query", query=query)
            return found and found["result"] and \
                float(found["result"][0]["value"][1])

        until(lambda: value('up{job="hoist"}') == 1)
        self.assertEqual(value("count(hoist_build_info)"), 1)
        with self.connect() as worker:
            model = worker.register(self.model, "m")
            lease = worker.stage(model.groups[0], deadline=30)
            until(lambda: value("hoist_leases") == 1)
            lease.release()
        until(lambda: value("hoist_leases") == 0)
        until(lambda: value('hoist_stage_seconds_count{from="disk"}') == 1)
        # It asked for OpenMetrics, got it, and found nothing wrong with it.
        target, = ask("targets")["activeTargets"]
        self.assertEqual((target["health"], target["lastError"]), ("up", ""))
        for family, kind in (("hoist_stages_total", "counter"),
                             ("hoist_stage_seconds", "histogram"),
                             ("hoist_tier_bytes", "gauge")):
            # OpenMetrics' families of counters have no "_total".
            for name in {family, family.removesuffix("_total")}:
                if found := ask("metadata", metric=name).get(name):
                    self.assertEqual(found[0]["type"], kind)
                    break
            else:
                self.fail(f"Prometheus does not know {family}")
        rules = ask("rules")["groups"][0]["rules"]
        until(lambda: all(rule["health"] == "ok"
                          for rule in ask("rules")["groups"][0]["rules"]))
        self.assertGreater(len(rules), 10)


if __name__ == "__main__":
    os.environ.setdefault("NO_PROXY", "127.0.0.1")
    unittest.main()
