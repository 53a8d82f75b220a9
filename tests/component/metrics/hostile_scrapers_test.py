"""Scrapers that are slow, many or mad cost nobody else anything.

hostile_scrapers_test.py HOISTD [unittest options]; needs HOIST_LIBRARY and
PYTHONPATH.
"""

import os
import pathlib
import resource
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from scrape import connect, get, rest, scrape, serves  # noqa: E402
import hoist  # noqa: E402
from real_daemon import (RealDaemon, block_model, until,  # noqa: E402
                         write_safetensors)

HOISTD = sys.argv.pop(1)


class HostileScrapers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))

    def setUp(self):
        self.daemon = RealDaemon(HOISTD)
        self.addCleanup(self.daemon.stop)
        self.path = str(self.daemon.path / "hoistd.metrics.sock")
        self.model = str(self.daemon.path / "m.safetensors")
        write_safetensors(self.model, block_model(2))
        until(lambda: serves(self.path))

    def all_is_well(self):
        """Workers are served, and so is another scraper."""
        with hoist.connect(self.daemon.socket, connect_deadline=30) as worker:
            model = worker.register(self.model, "m")
            worker.stage(model.groups[0], deadline=30).release()
        return scrape(self.daemon)

    def open(self, what=b""):
        client = connect(self.path)
        self.addCleanup(client.close)
        if what:
            client.sendall(what)
        return client

    def test_half_a_request(self):
        halves = [self.open(b"GET /metrics HT") for _ in range(100)]
        self.all_is_well()
        for half in halves:  # Each is closed, without a word.
            self.assertEqual(rest(half), b"")

    def test_a_thousand_connections(self):
        crowd = [self.open() for _ in range(1000)]
        samples = self.all_is_well()
        self.assertLess(samples.of("process_open_fds"), 500)
        self.assertEqual(rest(crowd[0]), b"")

    def test_a_thousand_scrapes_that_nobody_reads(self):
        before = self.all_is_well().of("hoist_engine_events_total")
        for _ in range(1000):
            self.open(b"GET /metrics HTTP/1.1\r\n\r\n")
        after = self.all_is_well().of("hoist_engine_events_total")
        # They shared few pictures: each would have been an event.
        self.assertLess(after - before, 500)

    def test_requests_without_an_end(self):
        mad = self.open()
        try:
            for _ in range(1000):
                mad.sendall(b"A" * 65536)
        except OSError:
            pass  # It closed, or takes no more.
        self.assertIn(rest(mad)[:12], (b"HTTP/1.1 431", b""))
        self.all_is_well()

    def test_what_is_no_request(self):
        for bytes_, code in ((b"\r\n\r\n", b"400"), (b"\x16\x03\x01\n\n", b"400"),
                             (os.urandom(64) + b"\n\n", b"400"),
                             (b"PUT /metrics HTTP/1.1\r\n\r\n", b"405"),
                             (b"GET /../etc/passwd HTTP/1.1\n\n", b"404")):
            self.assertEqual(rest(self.open(bytes_))[9:12], code, bytes_)
        self.assertIn(" 404 ", get(self.path, "/")[0])
        self.all_is_well()


if __name__ == "__main__":
    unittest.main()
