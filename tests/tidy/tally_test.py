#!/usr/bin/env python3
"""What scripts/tally.py makes of the results that ctest and pytest write."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts"))
import tally  # pylint: disable=wrong-import-position

CTEST = """<testsuite>
<testcase name="Good" status="run"/>
<testcase name="Bad" status="fail"><failure message=""/>
<system-out>%s
a_test.cc:7: Expected: 3, got 4
</system-out></testcase>
<testcase name="NotBuilt" status="notrun"/>
<testcase name="Skips" status="notrun">
<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
<system-out>a_test.cc:9: Skipped
no GPU here
</system-out></testcase>
<testcase name="SkipsToo" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
<system-out>skipped: needs root
</system-out></testcase></testsuite>""" % "\n".join(
    f"line {number} of the log" for number in range(200))
PYTEST = """<testsuites><testsuite>
<testcase name="good"/>
<testcase name="breaks"><error message="in set-up"/></testcase>
<testcase name="fails"><failure message="a word">a_test.py:3: ValueError: %s
</failure></testcase>
<testcase name="skips"><skipped message="no torch"/></testcase>
</testsuite></testsuites>""" % ("w" * 1000)
GOOD = '<testsuite><testcase name="good" status="run"/></testsuite>'


class TallyTest(unittest.TestCase):
    def tally(self, *texts):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for number, text in enumerate(texts):
                paths.append(pathlib.Path(folder) / f"{number}.xml")
                paths[-1].write_text(text, encoding="utf-8")
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                code = tally.main([str(path) for path in paths])
        return code, said.getvalue().splitlines()

    def test_sums_ctest_and_pytest_in_the_last_line(self):
        code, said = self.tally(CTEST, PYTEST)
        self.assertEqual(said[-1], "2 passed, 4 failed, 3 skipped")
        self.assertEqual(code, 1)

    def test_names_what_failed_and_why_others_were_skipped(self):
        _, said = self.tally(CTEST, PYTEST)
        text = "\n".join(said)
        for name in ("Bad", "NotBuilt", "breaks"):
            self.assertRegex(text, f"FAILED +{name}")
        self.assertIn("SKIPPED 1 x no GPU here", said)
        self.assertIn("SKIPPED 1 x needs root", said)
        self.assertIn("SKIPPED 1 x no torch", said)

    def test_says_at_the_end_why_each_failed(self):
        _, said = self.tally(CTEST, PYTEST)
        bad = next(at for at, line in enumerate(said)
                   if line.startswith("FAILED  Bad"))
        words = [line.strip() for line in said[bad + 1:bad + 26]]
        self.assertEqual(words[-1], "a_test.cc:7: Expected: 3, got 4")
        self.assertIn("line 199 of the log", words)
        self.assertFalse(any("line 1 " in line for line in said))
        self.assertIn("    in set-up", said)
        long = next(line for line in said if "ValueError" in line)
        self.assertTrue(long.endswith("w..."))
        self.assertLess(len(long), 210)
        self.assertLess(max(at for at, line in enumerate(said)
                            if line.startswith("SKIPPED")), bad)

    def test_a_thousand_failures_still_end_in_the_sum(self):
        bad = ('<testcase name="B" status="fail"><failure message=""/>'
               f"<system-out>{'word' + chr(10) * 30 + 'word'}</system-out>"
               "</testcase>")
        code, said = self.tally(f"<testsuite>{bad * 1000}</testsuite>")
        self.assertEqual((code, said[-1]),
                         (1, "0 passed, 1000 failed, 0 skipped"))
        self.assertEqual(sum(line.startswith("FAILED") for line in said), 1000)
        self.assertLess(len(said), 2000)

    def test_all_passed_is_success(self):
        self.assertEqual(self.tally(GOOD)[0], 0)

    def test_a_result_cut_short_is_a_failure(self):
        code, said = self.tally(GOOD, "<testsuite><testca")
        self.assertEqual((code, said[-1]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_nothing_run_is_a_failure(self):
        self.assertEqual(self.tally("<testsuite/>")[0], 1)

    def test_a_step_that_failed_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            for code, want in (("0", "1 passed, 0"), ("2", "0 passed, 1")):
                path = f"{folder}/step.xml"
                tally.main(["--step", "build", code, path])
                said = io.StringIO()
                with contextlib.redirect_stdout(said):
                    tally.main([path])
                self.assertIn(want, said.getvalue())


if __name__ == "__main__":
    unittest.main()
