"""hoist.Plan over libhoist, against the fake daemon.

python_plan_test.py FAKE_DAEMON LIBHOIST PACKAGE_FOLDER [unittest options]
"""

import os
import subprocess
import sys
import types
import unittest

FAKE_DAEMON = sys.argv.pop(1)
os.environ["HOIST_LIBRARY"] = os.path.realpath(sys.argv.pop(1))
sys.path.insert(0, sys.argv.pop(1))

import hoist  # noqa: E402  (found through the arguments)


class PlanTest(unittest.TestCase):
    def setUp(self):
        daemon = subprocess.Popen([FAKE_DAEMON], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.stdin.close)
        self.addCleanup(daemon.stdout.close)
        self.session = hoist.connect(daemon.stdout.readline().strip())
        self.addCleanup(self.session.close)
        self.model = self.session.model("deep")

    def plan(self, names=("l0", "l1", "l2"), **options):
        plan = self.session.set_plan(
            self.model, order=[self.model[name] for name in names], **options)
        self.addCleanup(plan.close)
        return plan

    def test_stages_and_is_done(self):
        plan = self.plan()
        for name in ("l0", "l1", "l2", "l0"):
            address = plan.stage(self.model[name])
            self.assertGreater(address, 0)
            plan.done(self.model[name])
        plan.check()
        stats = plan.stats
        self.assertEqual(stats.stages, 4)
        self.assertEqual(stats.resident_stages, 2)
        self.assertEqual(stats.ready_stages, 2)
        with self.assertRaises(hoist.FailedPrecondition):
            plan.done(self.model["l0"])

    def test_use_gives_tensors_for_the_block(self):
        plan = self.plan()
        with plan.use(self.model["l0"], stream=None) as tensors:
            self.assertEqual(list(tensors), ["w"])
            weight = tensors["w"]
            self.assertEqual(weight.shape, (1024,))
            self.assertEqual(weight.address, tensors["w"].address)
            with self.assertRaises(hoist.NotFound):
                tensors["nope"]
        with self.assertRaises(hoist.FailedPrecondition):
            weight.address
        plan.stage(self.model["l0"])  # The block ended the stage before.

    def test_use_is_done_where_the_block_raises(self):
        plan = self.plan()
        with self.assertRaises(ZeroDivisionError):
            with plan.use(self.model["l1"]):
                1 / 0
        with self.assertRaises(hoist.FailedPrecondition):
            plan.done(self.model["l1"])

    def test_a_group_outside_the_order_is_usable_too(self):
        plan = self.plan()
        self.assertEqual(plan.kind(self.model["l4"]), "unplanned")
        with plan.use(self.model["l4"]) as tensors:
            self.assertGreater(tensors["w"].address, 0)
        self.assertEqual(plan.stats.unplanned, 1)
        with self.assertRaises(hoist.FailedPrecondition):
            plan.tensors(self.model["l4"])

    def test_tensors_keep_their_addresses_while_the_plan_stands(self):
        plan = self.plan()
        weight = plan.tensors(self.model["l1"])["w"]
        self.assertEqual(weight.address, plan.stage(self.model["l1"]))
        plan.done(self.model["l1"])
        plan.set_budget(12288)
        self.assertEqual(plan.info.budget_bytes, 12288)
        with self.assertRaises(hoist.FailedPrecondition):
            weight.address

    def test_streams_are_handles_or_have_one(self):
        plan = self.plan()
        stream = types.SimpleNamespace(cuda_stream=7)
        plan.stage(self.model["l1"], stream=stream)
        plan.done(self.model["l1"], stream=7)
        with self.assertRaises(AttributeError):
            plan.stage(self.model["l1"], stream="seven")

    def test_an_order_can_be_set(self):
        plan = self.plan()
        for order in (["l3", "l1", "l3"], ["l2"]):
            plan.set_order([self.model[name] for name in order])
            self.assertEqual(
                {group.name for group in self.model if group.image_bytes
                 and plan.kind(group) != "unplanned"}, set(order))
        with self.assertRaises(hoist.InvalidArgument):
            plan.set_order([])

    def test_terms_are_checked_before_anything_is_asked(self):
        for name, value in (("weight", 0), ("weight", 1001), ("priority", 11),
                            ("priority", -11), ("max_bytes_per_second", -1),
                            ("max_bytes_per_second", 1 << 64),
                            ("stage_deadline", -1.0),
                            ("stage_deadline", float("nan"))):
            with self.assertRaisesRegex(hoist.InvalidArgument, name):
                self.session.set_plan(self.model, **{name: value})
        for name, value in (("weight", 1.5), ("max_bytes_per_second", "1"),
                            ("stage_deadline", None), ("cap", 1)):
            with self.assertRaises(TypeError):
                self.session.set_plan(self.model, **{name: value})

    def test_an_order_is_learned(self):
        plan = self.session.set_plan(self.model)
        self.assertTrue(plan.info.learning)
        for name in ("l3", "l1"):
            with plan.use(self.model[name]):
                pass
        self.assertTrue(plan.end_pass())
        self.assertFalse(plan.end_pass())
        self.assertFalse(plan.info.learning)
        self.assertEqual(plan.info.group_count, 2)
        self.assertEqual(plan.kind(self.model["l3"]), "streamed")

    def test_what_cannot_be_is_refused(self):
        with self.assertRaises(hoist.InvalidArgument):
            self.session.set_plan(self.model, order=[])
        with self.assertRaises(hoist.InvalidArgument):
            self.plan(weight=1001)
        with self.assertRaises(hoist.InvalidArgument):
            self.plan().stage(self.session.model("m")["a"])

    def test_a_closed_plan_is_refused(self):
        plan = self.plan()
        plan.close()
        plan.close()
        with self.assertRaises(hoist.InvalidArgument):
            plan.stage(self.model["l1"])

    def test_numpy_sees_the_bytes(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not installed")
        plan = self.plan()
        with plan.use(self.model["l0"]) as tensors:
            bits = tensors["w"].numpy().view(numpy.uint8)
            self.assertTrue((bits == 0x11).all())


if __name__ == "__main__":
    unittest.main()
