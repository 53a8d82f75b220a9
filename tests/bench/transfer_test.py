"""transfer_sim.py: its simulation against its formula and against sums made by
hand, and deploy/NODES.md, which has what it printed.

transfer_test.py [unittest options]
"""

import io
import itertools
import pathlib
import re
import sys
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
import transfer_sim  # noqa: E402
from transfer_sim import SHAPES, Net, formula, simulate  # noqa: E402

NODES_MD = HERE.parents[1] / "deploy/NODES.md"


def printed(words):
    out = io.StringIO()
    transfer_sim.main(words, out)
    return out.getvalue().strip()


class Transfer(unittest.TestCase):
    def test_the_formula_agrees(self):
        for shape, nodes, groups, window, latency, overhead in (
                itertools.product(SHAPES, (1, 2, 3, 7, 8, 20), (1, 2, 5, 17),
                                  (1, 2, 3, 4, 100), (0, 0.5, 7), (0, 0.25))):
            with self.subTest(shape, nodes=nodes, groups=groups,
                              window=window, latency=latency,
                              overhead=overhead):
                net = Net(1.0, latency, overhead, window)
                took = simulate(shape, nodes, groups, 1.0, net)
                said = formula(shape, nodes, groups, 1.0, net)
                self.assertLess(abs(took - said), 0.01 * took)

    def test_sums_by_hand(self):
        free = Net(rate=2.0, latency=0, overhead=0, window=9)
        # Of 1 s each: 3 to each of 4; 3 down a chain of 4; 3 groups of which
        # each takes node 1 two turns, after one from the source.
        self.assertEqual(simulate("all", 4, 3, 2.0, free), 12)
        self.assertEqual(simulate("chain", 4, 3, 2.0, free), 6)
        self.assertEqual(simulate("tree", 3, 3, 2.0, free), 7)
        slow = Net(rate=2.0, latency=3, overhead=1, window=1)
        # One group and its word take 1 + 3 + 1 + 3.
        self.assertEqual(simulate("chain", 1, 3, 2.0, slow), 2 * 8 + 5)

    def test_a_window_that_is_wide_enough_costs_nothing(self):
        narrow, wide = (
            simulate("chain", 10, 50, 1.0, Net(1.0, 2.0, 1.0, window))
            for window in (6, 1000))
        self.assertEqual(narrow, wide)
        self.assertLess(wide, simulate("chain", 10, 50, 1.0,
                                       Net(1.0, 2.0, 1.0, 5)))

    def test_what_scales_with_what(self):
        net = Net(1.0, 0.001, 0.001, 4)

        def growth(shape):
            return (simulate(shape, 100, 50, 1.0, net)
                    / simulate(shape, 10, 50, 1.0, net))

        self.assertAlmostEqual(growth("all"), 10, delta=0.01)
        self.assertLess(growth("chain"), 3)
        self.assertLess(growth("tree"), 1.2)

    def test_what_cannot_be_is_refused(self):
        net = Net(1.0, 0, 0, 1)
        for wrong in (lambda: Net(0, 0, 0, 1), lambda: Net(1, -1, 0, 1),
                      lambda: Net(1, 0, 0, 0),
                      lambda: simulate("chain", 0, 1, 1, net),
                      lambda: simulate("star", 1, 1, 1, net),
                      lambda: formula("star", 1, 1, 1, net)):
            self.assertRaises(ValueError, wrong)

    def test_the_guide_has_what_this_prints(self):
        text = NODES_MD.read_text("utf-8")
        found = re.findall(r"^    tests/bench/transfer_sim\.py *(.*)\n\n"
                           r"((?:.+\n|\n(?=\|))+)", text, re.M)
        self.assertGreaterEqual(len(found), 2)
        for words, said in found:
            self.assertEqual(said.strip(), printed(words.split()))


if __name__ == "__main__":
    unittest.main()
