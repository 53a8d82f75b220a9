"""Weights of which the pool holds a part, pageable memory another, the disk all.
"""

import json
import tempfile
import threading
import unittest

import hoist
from kept import HOISTD, KEEPER, Kept, needs_numpy, np
from real_daemon import MIB, RealDaemon, until

GROUPS = 7  # The pool and pageable memory have four each.


def bytes_of(group):
    return np.random.default_rng(group).integers(0, 256, MIB, dtype=np.uint8)


@needs_numpy
class Pageable(Kept):
    def start(self, keeper=None):
        folder = tempfile.TemporaryDirectory(prefix="hoist-spill-")
        self.addCleanup(folder.cleanup)
        self.begin(pool=2 * MIB, host=4 * MIB, pageable=4 * MIB, keeper=keeper,
                   extra=f'[disk]\nspill_dir = "{folder.name}/s"\n')
        with self.connect() as session:
            for group in range(GROUPS):
                session.publish("model", f"g{group}", {"w": bytes_of(group)},
                                deadline=60)

    def check_all(self, session):
        model = session.model("model")
        for group in range(GROUPS):
            with session.stage(model[f"g{group}"], deadline=60) as lease:
                np.testing.assert_array_equal(lease["w"].numpy(),
                                              bytes_of(group))

    def test_it_serves_what_the_pool_cannot_hold(self):
        self.start()
        with self.connect() as session:
            for _ in range(2):
                self.check_all(session)
        counters = self.daemon.counters()
        self.assertGreater(counters["pageable_read_bytes"], 0)
        tier = self.daemon.tier("PAGEABLE")
        self.assertEqual(tier["capacity_bytes"], 4 * MIB)
        self.assertGreater(tier["used_bytes"], 0)
        self.assertIn("\npageable", self.daemon.ctl("status"))
        self.assertIn("there: made room in the pool",
                      self.daemon.ctl("explain", "model"))
        self.assertIn('host.pageable', self.daemon.ctl("config"))
        self.assertIn("  PAGEABLE  ", self.daemon.ctl("models"))
        model = json.loads(self.daemon.ctl("models", "--json"))["models"][0]
        self.assertEqual(int(model["pageable_bytes"]), tier["used_bytes"])
        self.assertIn("all are right", self.daemon.ctl("check"))

    def test_a_drain_stops_no_copy(self):
        self.start()
        with self.connect() as session:
            self.check_all(session)
            self.daemon.ctl("drain")
            self.daemon.count_anew()
            self.check_all(session)
        self.assertGreater(self.daemon.counters()["pageable_read_bytes"], 0)

    def test_hoistd_killed_among_copies_loses_nothing(self):
        self.start(keeper=KEEPER)
        over = threading.Event()
        failed = []

        def read():
            while not over.is_set():
                try:
                    with self.connect() as session:
                        while not over.is_set():
                            self.check_all(session)
                except hoist.HoistError:
                    continue  # hoistd has died.
                except AssertionError as error:
                    failed.append(error)
                    return
        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(5):
            until(lambda: self.daemon.until_served() and
                  self.daemon.counters()["pageable_read_bytes"])
            self.daemon.kill_kept()
        over.set()
        reader.join()
        self.assertEqual(failed, [])
        with self.connect() as session:
            self.check_all(session)

    def test_without_a_disk_behind_it_hoistd_does_not_start(self):
        daemon = RealDaemon(HOISTD, pageable=4 * MIB)
        self.addCleanup(daemon.stop)
        self.assertNotEqual(daemon.process.wait(timeout=60), 0)
        self.assertIn("host.pageable to 0", daemon.log_text())


if __name__ == "__main__":
    unittest.main()
