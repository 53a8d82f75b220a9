"""hoistd's log goes nowhere: every write to it is refused, or its reader is gone.

full_log_test.py HOISTD [unittest options]; needs HOIST_LIBRARY, PYTHONPATH.
"""

import os
import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import RealDaemon  # noqa: E402

HOISTD = os.path.abspath(sys.argv.pop(1))


class Deaf(RealDaemon):
    """A hoistd whose log is this file, once it is started again."""

    def again(self, log):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.process = subprocess.Popen(
            [str(self.binary), "--config", str(self.path / "hoistd.toml")],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log)


class FullLog(unittest.TestCase):
    def setUp(self):
        self.daemon = Deaf(HOISTD)
        self.addCleanup(self.daemon.stop)
        hoist.connect(self.daemon.socket, connect_deadline=60).close()

    def serve(self):
        """What writes lines: sessions, an audited verb, refusals."""
        for turn in range(20):
            with hoist.connect(self.daemon.socket,
                               connect_deadline=60) as session:
                model = session.publish("m", f"g{turn}",
                                        {"w": bytearray([turn] * 4096)})
                with session.stage(model[f"g{turn}"], deadline=10) as lease:
                    self.assertEqual(set(bytes(lease["w"].numpy())), {turn})
                with self.assertRaises(hoist.NotFound):
                    session.model("nobody's")
        self.daemon.ctl("evict", "m", "--forget")
        self.assertEqual(self.daemon.status()["models"], 0)
        self.assertIsNone(self.daemon.process.poll())

    def test_a_disk_without_room(self):
        with open("/dev/full", "wb") as full:
            self.daemon.again(full)
        self.serve()

    def test_a_pipe_that_nobody_reads_any_more(self):
        read, write = os.pipe()
        self.daemon.again(write)
        os.close(write)
        os.close(read)
        self.serve()


if __name__ == "__main__":
    unittest.main()
