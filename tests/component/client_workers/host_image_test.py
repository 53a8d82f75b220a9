"""Host images of the Python package against a real hoistd.

host_image_test.py HOISTD [unittest options]; needs HOIST_LIBRARY and
PYTHONPATH.
"""

import ctypes
import gc
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import (MIB, RealDaemon, block_model,  # noqa: E402
                         write_safetensors)

HOISTD = sys.argv.pop(1)
PAGE = 4096
# The small parts of a child's process; it prints what it has come to.
CHILD = """
import ctypes, sys, hoist
session = hoist.connect(sys.argv[1])
model = session.model("m")
image = session.host_image(model["layers.0"])
tensor = image["layers.0.w"]
"""


def bytes_of(tensor):
    return ctypes.string_at(tensor.address, tensor.nbytes) \
        if tensor.nbytes else b""


def mapped_images():
    """[(address, resident bytes)] of the host images this process maps."""
    found, address = [], None
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        if line[0] in "0123456789abcdef" and "-" in line.split(" ", 1)[0]:
            start = int(line.split("-", 1)[0], 16)
            address = start if "memfd:hoist-image" in line else None
        elif line.startswith("Rss:") and address is not None:
            found.append((address, int(line.split()[1]) * 1024))
    return found


def memory_now():
    """(pages in use, descriptors, mappings) of this process."""
    gc.collect()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    fds = len(os.listdir("/proc/self/fd"))
    maps = len(pathlib.Path("/proc/self/maps").read_text().splitlines())
    return pages, fds, maps


class HostImages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="hoist-model-")
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "model.safetensors")
        self.tensors = block_model()
        write_safetensors(self.path, self.tensors)
        self.daemon = None

    def start(self, **options):
        self.daemon = RealDaemon(HOISTD, pool=2 * MIB, slab=2 * MIB, **options)
        self.addCleanup(self.daemon.stop)

    def connect(self):
        if self.daemon is None:
            self.start()
        session = hoist.connect(self.daemon.socket, connect_deadline=20)
        self.addCleanup(session.close)
        return session

    def check_image(self, image):
        self.assertTrue(image.loaded)
        for name, tensor in image.items():
            dtype, shape, data = self.tensors[name]
            self.assertEqual((tensor.dtype, list(tensor.shape)),
                             (dtype, shape))
            self.assertEqual(bytes_of(tensor), data, name)

    # --- The bytes. ---

    def test_every_groups_bytes_equal_the_files(self):
        session = self.connect()
        seen = set()
        for group in session.register(self.path, "m"):
            image = session.host_image(group)
            self.assertEqual(image.nbytes, group.image_bytes)
            image.load()
            self.check_image(image)
            seen.update(image)
        self.assertEqual(seen, set(self.tensors))
        # As one group it is larger than the device, which has no part in it.
        whole = session.register(self.path, "whole", groups="whole")
        image = session.host_image(whole["model"])
        image.load()
        self.check_image(image)
        self.assertEqual(self.daemon.tier("DEVICE")["used_bytes"], 0)

    def test_published_groups_come_from_the_host_and_from_the_spill_store(self):
        spill = os.path.join(self.folder.name, "spill")
        self.start(extra=f'[disk]\nspill_dir = "{spill}"')
        session = self.connect()
        try:
            import numpy as np
        except ImportError:
            self.skipTest("numpy is not installed")
        arrays = {"a": np.frombuffer(os.urandom(3 * MIB), np.uint8),
                  "b": np.arange(7, dtype=np.float32)}
        model = session.publish("mine", "g", arrays)
        image = session.host_image(model["g"])
        views = {name: image[name].numpy() for name in arrays}
        for source in ("host", "disk"):
            with self.subTest(source):
                image.load()
                for name, array in arrays.items():
                    np.testing.assert_array_equal(views[name], array)
                image.drop()
            if source == "host":
                self.daemon.ctl("evict", "mine")
                while self.daemon.tier("HOST")["used_bytes"]:
                    pass  # Until it is spilled; the test's timeout ends it.
        self.assertGreater(self.daemon.counters()["spill_read_bytes"], 3 * MIB)

    def test_a_host_tier_that_holds_one_group_serves_all_by_turns(self):
        self.start(host=2 * MIB)
        session = self.connect()
        model = session.register(self.path, "m")
        images = [session.host_image(group) for group in model]
        for _ in range(3):
            for image in images:
                image.load()
                self.check_image(image)
                image.drop()
        self.assertGreater(self.daemon.counters()["host_evictions"], 10)

    def test_images_outlive_their_copies_in_hoistd(self):
        session = self.connect()
        model = session.register(self.path, "m")
        image = session.host_image(model["layers.1"])
        image.load()
        self.daemon.ctl("evict", "m", "--forget")
        self.check_image(image)
        image.drop()
        with self.assertRaises(hoist.NotFound):
            image.load()
        self.assertFalse(image.loaded)
        session.check()

    # --- The addresses. ---

    def test_the_address_is_known_before_and_never_changes(self):
        session = self.connect()
        model = session.register(self.path, "m")
        image = session.host_image(model["layers.0"])
        address = image.address
        self.assertEqual(address % (2 * MIB), 0)
        tensors = {name: image[name].address for name in image}
        self.assertEqual(mapped_images(), [])
        for _ in range(3):
            self.assertFalse(image.loaded)
            image.load()
            image.load()  # Again: nothing happens.
            self.assertEqual([at for at, _ in mapped_images()], [address])
            self.assertEqual(tensors, {n: image[n].address for n in image})
            self.check_image(image)
            image.drop()
            image.drop()
        self.assertEqual(mapped_images(), [])

    def test_a_view_made_before_keeps_the_image(self):
        session = self.connect()
        model = session.register(self.path, "m")
        try:
            import numpy  # noqa: F401
        except ImportError:
            self.skipTest("numpy is not installed")
        image = session.host_image(model["layers.2"])
        view = image["layers.2.w"].numpy()
        image.load()
        del image
        gc.collect()
        self.assertEqual(view.tobytes(), self.tensors["layers.2.w"][2])
        del view
        gc.collect()
        self.assertEqual(mapped_images(), [])

    def test_torch_views_are_built_before_the_bytes_come(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        session = self.connect()
        model = session.register(self.path, "m")
        image = session.host_image(model["layers.4"])
        views = {name: image[name].torch() for name in image}
        places = {name: view.data_ptr() for name, view in views.items()}
        for _ in range(2):
            image.load()
            for name, view in views.items():
                _, shape, data = self.tensors[name]
                self.assertEqual(list(view.shape), shape)
                self.assertEqual(view.device.type, "cpu")
                self.assertEqual(view.data_ptr(), places[name])
                raw = view.contiguous().view(torch.uint8).flatten()
                self.assertEqual(bytes(raw.tolist()), data, name)
            image.drop()
        empty = session.host_image(model["norm"])["norm.none"].torch()
        self.assertEqual(tuple(empty.shape), (0, 4))

    def test_an_empty_image_loads(self):
        session = self.connect()
        model = session.register(
            self.path, "explicit",
            groups={"none": ["norm.none"],
                    "rest": [n for n in self.tensors if n != "norm.none"]})
        image = session.host_image(model["none"])
        self.assertEqual((image.address, image.nbytes), (0, 0))
        image.load()
        self.assertTrue(image.loaded)
        self.assertEqual(image["norm.none"].address, 0)

    def in_child(self, code):
        """How a child ends that runs CHILD and then `code`."""
        return subprocess.run(
            [sys.executable, "-c", CHILD + code, self.daemon.socket],
            capture_output=True, text=True)

    def test_touching_what_is_not_loaded_and_writing_are_faults(self):
        self.connect().register(self.path, "m")
        read = "ctypes.string_at(tensor.address, 1)\n"
        for code in (read, "image.load()\nimage.drop()\n" + read,
                     "image.load()\nctypes.memset(tensor.address, 0, 1)\n"):
            self.assertEqual(self.in_child(code).returncode, -signal.SIGSEGV,
                             code)
        ends = self.in_child("image.load()\n" + read + "print('read')")
        self.assertEqual((ends.returncode, ends.stdout), (0, "read\n"))

    def test_no_addresses_left_is_resource_exhausted(self):
        self.connect().register(self.path, "m")
        ends = self.in_child("""
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
try:
    session.host_image(model["layers.1"])
except hoist.ResourceExhausted:
    print("refused")
""")
        self.assertEqual(ends.stdout, "refused\n", ends.stderr)

    # --- The memory. ---

    def test_drop_gives_the_memory_back(self):
        session = self.connect()
        whole = session.register(self.path, "whole", groups="whole")
        image = session.host_image(whole["model"])
        image.load()
        self.check_image(image)  # Touches all of it.
        (_, resident), = mapped_images()
        self.assertGreaterEqual(resident, image.nbytes)
        image.drop()
        self.assertEqual(mapped_images(), [])

    def test_a_hundred_rounds_grow_nothing(self):
        session = self.connect()
        model = session.register(self.path, "m")
        image = session.host_image(model["layers.0"])

        def rounds(count):
            for _ in range(count):
                image.load()
                ctypes.string_at(image.address, image.nbytes)
                image.drop()
                session.host_image(model["layers.1"]).close()

        rounds(10)  # What is cached on the way is cached by now.
        before = memory_now()
        used = self.daemon.tier("HOST")["used_bytes"]
        rounds(100)
        after = memory_now()
        # A leak of one image in ten would be 10 of them.
        self.assertLess((after[0] - before[0]) * PAGE, 5 * image.nbytes)
        self.assertEqual(after[1], before[1])
        self.assertLess(after[2], before[2] + 50)  # Python has some of its own.
        self.assertEqual(self.daemon.tier("HOST")["used_bytes"], used)
        self.daemon.ctl("evict", "m", "--forget")  # Nothing is held.

    # --- Threads, forks, ends. ---

    def test_loads_of_several_threads_load_once(self):
        session = self.connect()
        model = session.register(self.path, "m")
        image = session.host_image(model["layers.3"])
        barrier, failed = threading.Barrier(4), []

        def load():
            barrier.wait()
            try:
                image.load()
                self.check_image(image)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])
        self.assertEqual(len(mapped_images()), 1)

    def test_many_images_load_at_once(self):
        session = self.connect()
        model = session.register(self.path, "m")
        failed = []

        def work(group):
            try:
                for _ in range(10):
                    with session.host_image(group) as image:
                        image.load()
                        self.check_image(image)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(group,))
                   for group in model.groups[:4] * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])
        self.assertEqual(mapped_images(), [])

    def test_the_child_of_a_fork_reads_what_is_loaded_and_loads_nothing(self):
        session = self.connect()
        model = session.register(self.path, "m")
        image = session.host_image(model["layers.0"])
        other = session.host_image(model["layers.1"])
        image.load()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                self.check_image(image)
                for what in (image, other):
                    try:
                        what.load()
                    except hoist.FailedPrecondition:
                        code += 1
                image.drop()
                code += image.loaded
                image.close()
                other.close()
            finally:
                os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 3)
        self.check_image(image)  # The parent's is as it was.

    def test_what_is_loaded_stays_after_the_sessions_end(self):
        session = self.connect()
        model = session.register(self.path, "m")
        image = session.host_image(model["layers.0"])
        other = session.host_image(model["layers.1"])
        image.load()
        session.close()
        self.check_image(image)
        image.load()  # It is there.
        with self.assertRaises(hoist.FailedPrecondition):
            other.load()
        with self.assertRaises(hoist.FailedPrecondition):
            session.host_image(model["layers.1"])
        image.close()
        with self.assertRaises(hoist.FailedPrecondition):
            image.load()
        with self.assertRaises(hoist.FailedPrecondition):
            image["layers.0.w"].address
        self.assertFalse(image.loaded)

    def test_a_killed_daemon_is_unavailable(self):
        session = self.connect()
        model = session.register(self.path, "m")
        image = session.host_image(model["layers.0"])
        other = session.host_image(model["layers.1"])
        image.load()
        self.daemon.kill()
        with self.assertRaises(hoist.Unavailable):
            other.load()
        self.check_image(image)

    # --- Refusals. ---

    def test_a_full_host_tier_is_refused_with_numbers(self):
        self.start(host=2 * MIB)
        session = self.connect()
        model = session.register(self.path, "m")
        self.publish_bytes(session)
        image = session.host_image(model["layers.0"])
        for deadline in (0, 0.2):
            with self.assertRaises(hoist.ResourceExhausted) as refused:
                image.load(deadline=deadline)
            self.assertIn("published and nowhere else", str(refused.exception))
        self.assertFalse(image.loaded)
        self.daemon.ctl("evict", "mine", "--forget")
        image.load(deadline=0)
        self.check_image(image)

    def publish_bytes(self, session):
        try:
            import numpy as np
        except ImportError:
            self.skipTest("numpy is not installed")
        session.publish("mine", "g", {"a": np.zeros(MIB + PAGE, np.uint8)})

    def test_names_that_are_not_there_are_not_found(self):
        session = self.connect()
        model = session.register(self.path, "m")
        image = session.host_image(model["layers.0"])
        self.assertNotIn("layers.1.w", image)
        with self.assertRaises(hoist.NotFound):
            image["layers.1.w"]
        self.assertEqual(len(image), 2)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # Faults are meant.
    unittest.main()
