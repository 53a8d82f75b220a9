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
# As ctest and pytest-rerunfailures write and say it.
CTEST_AGAIN = """<testsuite>
<testcase name="unit.Good" classname="unit.Good" status="run"/>
<testcase name="component.Once/7" classname="component.Once/7" status="run">
<system-out>3/9 Test #3: unit.Good ...***Failed  0.1 sec</system-out></testcase>
<testcase name="with space" classname="with space" status="run"/>
<testcase name="Bad" classname="Bad" status="fail"><failure message=""/>
</testcase>
<testcase name="Skips" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
</testcase></testsuite>"""
CTEST_LOG = """Test project /tmp/b
    Start 1: unit.Good
1/5 Test #1: unit.Good .................   Passed    0.02 sec
1/5 Test #2: component.Once/7 ..........***Failed    0.01 sec
a_test.cc:3: Expected: true

    Start 2: component.Once/7
    Test #2: component.Once/7 ..........   Passed    0.02 sec
3/5 Test #3: with space ................***Timeout   1.01 sec
    Test #3: with space ................   Passed    0.01 sec
4/5 Test #4: Bad .......................***Failed    0.01 sec
    Test #4: Bad .......................***Failed    0.01 sec
5/5 Test #5: Skips .....................***Skipped   0.00 sec
"""
PYTEST_AGAIN = """<testsuites><testsuite>
<testcase classname="a.test_a" name="once[1]"/>
<testcase classname="a.test_b" name="once[1]"/>
<testcase classname="a.test_a" name="once[1]"><properties>
<property name="cpu_seconds" value="1.00"/><property name="reruns" value="1"/>
<property name="rerun_after" value="test_a.py:3: it was late"/></properties>
</testcase>
<testcase classname="a.test_a" name="never"/>
<testcase classname="a.test_a" name="never"><properties>
<property name="reruns" value="1"/></properties><failure message="no"/>
</testcase></testsuite></testsuites>"""
GTEST = """<testsuites cpu_seconds="1"><testsuite>
<testcase name="A" classname="S" status="run" result="completed"/>
<testcase name="B" classname="S" status="run" result="completed"/>
<testcase name="C" classname="S" status="notrun" result="suppressed"/>
<testcase name="D" classname="S" status="run" result="skipped">
<skipped message="no GPU"/></testcase></testsuite></testsuites>"""
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

    def test_a_step_that_failed_counts_and_says_its_logs_last_words(self):
        with tempfile.TemporaryDirectory() as folder:
            for code, log, want in (("0", "log", "1 passed, 0"),
                                    ("2", "log", "0 passed, 1"),
                                    ("2", "none", "exit status 2")):
                path = f"{folder}/step.xml"
                pathlib.Path(folder, "log").write_bytes(b"\x1b[1mwhy\xff")
                tally.main(["--step", "build", code, f"{folder}/{log}", path])
                said = io.StringIO()
                with contextlib.redirect_stdout(said):
                    tally.main([path])
                self.assertIn(want, said.getvalue())
                self.assertEqual("why" in said.getvalue(),
                                 (code, log) == ("2", "log"))

    def test_a_program_that_is_not_there_is_a_failure(self):
        """ctest says that it is skipped."""
        code, said = self.tally('<testsuite><testcase name="X" status="notrun">'
                                '<skipped message="Unable to find executable"/>'
                                "</testcase></testsuite>", GOOD)
        self.assertEqual((code, said[-1]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_a_test_that_passed_at_the_second_attempt_is_flaky(self):
        """It counts once; one that fails twice is no flake."""
        code, said = self.tally(PYTEST_AGAIN)
        self.assertEqual((code, said[-2:]),
                         (1, ["1 flaky", "2 passed, 1 failed, 0 skipped"]))
        flaky = [line for line in said if line.startswith("FLAKY")]
        self.assertEqual(len(flaky), 1)
        self.assertRegex(flaky[0], r"FLAKY +once\[1\].*: test_a.py:3: it was late")

    def test_without_a_flake_there_is_no_line_of_them(self):
        self.assertEqual(self.tally(GOOD),
                         (0, ["1 passed, 0 failed, 0 skipped"]))

    def test_a_program_counts_by_its_cases(self):
        """And by itself where it failed: it may have ended before the last."""
        for status, want in (("run", (0, "2 passed, 0 failed, 1 skipped")),
                             ("fail", (1, "2 passed, 1 failed, 1 skipped"))):
            with tempfile.TemporaryDirectory() as folder:
                of_ctest = pathlib.Path(folder) / "ctest.xml"
                of_ctest.write_text('<testsuite><testcase name="unit.a" '
                                    f'status="{status}"/></testsuite>',
                                    encoding="utf-8")
                of_gtest = pathlib.Path(folder) / "gtest/unit.a.xml"
                of_gtest.parent.mkdir()
                of_gtest.write_text(GTEST, encoding="utf-8")
                said = io.StringIO()
                with contextlib.redirect_stdout(said):
                    code = tally.main([str(of_ctest), str(of_gtest)])
            self.assertEqual((code, said.getvalue().splitlines()[-1]), want)

    def test_ctests_log_tells_what_its_result_hides(self):
        with tempfile.TemporaryDirectory() as folder:
            path, log = (pathlib.Path(folder) / name for name in "xl")
            path.write_text(CTEST_AGAIN, encoding="utf-8")
            log.write_text(CTEST_LOG, encoding="utf-8")
            tally.main(["--flaky-from", str(log), str(path)])
            code, said = self.tally(path.read_text(encoding="utf-8"))
        self.assertEqual((code, said[-2:]),
                         (1, ["2 flaky", "3 passed, 1 failed, 1 skipped"]))
        flaky = "\n".join(line for line in said if line.startswith("FLAKY"))
        self.assertRegex(flaky, "component.Once/7.*: Failed")
        self.assertRegex(flaky, "with space.*: Timeout")

    def test_what_takes_too_much_cpu_is_a_failure(self):
        """A Python file in all of its tests, and a program of gtest's; a test
        that waits takes none. A slow machine is slow for all files."""
        def suite(*took):
            return "<testsuite>%s</testsuite>" % "".join(
                f'<testcase classname="{name}" name="{number}" time="99">'
                f'<properties><property name="cpu_seconds" value="{seconds}"/>'
                "</properties></testcase>"
                for number, (name, seconds) in enumerate(took))
        slow = [(f"a.test_{number}", 70) for number in range(16)]
        several = suite(("a.test_a", 30), ("a.test_b", 15.5), ("a.test_a.In", 14))
        for text, want in (
                (several, "1 passed, 0 failed"), (GOOD, "1 passed, 0 failed"),
                (suite(("a.test_a", 30), ("a.test_a.In", 15.5)), "0 passed, 1"),
                ('<testsuites cpu_seconds="29.5"/>', "1 passed, 0 failed"),
                ('<testsuites cpu_seconds="30.5"/>', "0 passed, 1"),
                (suite(*slow), "1 passed, 0 failed"),
                (suite(*slow, ("a.test_a", 130)), "0 passed, 1"),
                (suite(("a.test_a", 46), ("a.test_b", 64)), "0 passed, 1")):
            with tempfile.TemporaryDirectory() as folder:
                path, out = (pathlib.Path(folder) / name for name in "xo")
                path.write_text(text, encoding="utf-8")
                tally.main(["--limits", str(out), str(path)])
                _, said = self.tally(out.read_text(encoding="utf-8"))
            self.assertIn(want, said[-1])
        self.assertIn("a.test_a: 46 s of CPU", "\n".join(said))
        self.assertIn("a.test_b: 64 s of CPU", "\n".join(said))


if __name__ == "__main__":
    unittest.main()
