#!/usr/bin/env python3
"""Every subcommand of hoist-bench, in small, on the emulated device.

smoke_test.py HOIST_BENCH HOISTD [-v]

Nothing is said here about speed: that a run ends well, that its JSON has what
README.md promises, and what must hold at any speed.
"""

import json
import subprocess
import sys
import tempfile
import unittest

BENCH, HOISTD = sys.argv[1], sys.argv[2]


def run(*args: str) -> dict:
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/tmp") as folder:
        done = subprocess.run(
            [BENCH, "--hoistd", HOISTD, "--device", "emulated", "--folder",
             folder, "--json", "-", *args],
            capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise AssertionError(f"{args}: {done.stderr}")
    return json.loads(done.stdout)


class BenchTest(unittest.TestCase):
    def rows(self, *args: str, fields: str) -> list:
        report = run(*args)
        self.assertEqual(report["bench"], args[2] if args[0] == "--link"
                         else args[0])
        rows = [row for row in report["rows"]
                if all(field in row for field in fields.split())]
        self.assertTrue(rows, f"no row has {fields}")
        return rows

    def test_stream_sees_the_right_bytes(self):
        rows = self.rows(
            "stream", "--group-mib", "8", "--groups", "8", "--passes", "3",
            "--compute", "read", "--verify", "--resident", "0,1",
            "--ring-extra-mib", "0",
            fields="gb_per_s link_gb_per_s of_link floor_ms of_floor wrong")
        self.assertEqual([row["wrong"] for row in rows], [0, 0])
        self.assertLess(rows[0]["resident"], 1)
        self.assertEqual(rows[1]["resident"], 1)

    def test_stream_says_why_the_link_idled(self):
        rows = self.rows(
            "stream", "--group-mib", "16", "--groups", "8", "--passes", "3",
            "--compute", "read", "--resident", "0", "--ring-extra-mib", "0",
            "--gaps",
            fields="gaps_over_2_ms cause longest_ms all_ms recorded_pass_ms")
        by_cause = {row["cause"]: row["gaps_over_2_ms"] for row in rows}
        self.assertEqual(len(by_cause), len(rows))
        self.assertEqual(by_cause.pop("all"), sum(by_cause.values()))

    def test_slowdown(self):
        self.rows("slowdown", "--group-mib", "1", "--groups", "8", "--rounds",
                  "1", "--settle-seconds", "0.05",
                  fields="alone_ms beside_ms slower_by limit")

    def test_hotpath(self):
        rows = self.rows("hotpath", "--group-mib", "0.25", "--groups", "16",
                         "--pairs", "200",
                         fields="median_us p99_us limit_us with_system_call")
        self.assertEqual(sum(row["count"] for row in rows), 400)

    def test_attach_of_a_second_worker_copies_nothing(self):
        first, second = self.rows(
            "attach", "--group-mib", "1", "--groups", "4", "--second-workers",
            "1", fields="to_first_ms to_all_ms copied_mib rss_added_mib")
        self.assertEqual((first["copied_mib"], second["copied_mib"]), (4, 0))

    def test_policy_meets_the_optimum(self):
        rows = self.rows("policy", "--no-slack",
                         fields="planned_gib optimum_gib lru_gib min_gib")
        exact = [row["of_optimum"] for row in rows
                 if row["of_optimum"] is not None]
        self.assertTrue(exact)
        for ratio in exact:
            self.assertAlmostEqual(ratio, 1)

    def test_a_plan_copies_little_beyond_what_the_budget_lacks(self):
        rows = self.rows("policy", "--floor", "--budgets", "0.3,0.5,0.7,0.9",
                         fields="decoder groups budget x_beyond lead uneven")
        large = [row for row in rows if row["decoder"].startswith("8B, 24")]
        self.assertEqual(len(large), 8)
        for row in large:
            bound = 1.08 if row["groups"] == "leaf" else 1.107
            self.assertTrue(1 <= row["x_beyond"] <= bound, row)
            self.assertLess(row["uneven"] or 1, 1.04, row)

    def test_no_policy_of_hot_experts_beats_the_optimum(self):
        rows = self.rows(
            "policy", "--experts", "--steps", "128", "--layer-experts", "64",
            "--chosen", "4", "--sequences", "1,8", "--hot", "0.25,0.5",
            fields="trace sequences hot policy missed moved_mib_a_step "
                   "moved_per_saved link of_optimum")
        self.assertEqual(len({row["trace"] for row in rows}), 3)
        for row in rows:
            self.assertGreaterEqual(row["of_optimum"], 1, row)
            self.assertGreaterEqual(row["link"], row["missed"], row)
            if row["policy"] == "unmoved":
                self.assertEqual(row["moved_mib_a_step"], 0, row)

    def test_recency_has_the_hit_rates_that_were_reported(self):
        rows = self.rows("policy", "--experts", "--layers", "1", "--sequences",
                         "1", "--hot", "0.125,0.25", fields="missed")
        hits = [1 - row["missed"] for row in rows
                if (row["trace"], row["policy"]) == ("recency", "lru")]
        for reached, reported in zip(hits, (0.67, 0.81), strict=True):
            self.assertAlmostEqual(reached, reported, delta=0.03)

    def test_what_is_foreseen_a_layer_earlier_takes_less(self):
        rows = self.rows(
            "policy", "--ahead", "--steps", "8", "--hot", "0.4,0.6", "--right",
            "0,0.8", fields="trace hot right known cold_mb today_ms ms "
                            "x_resident x_today wasted places")
        self.assertEqual(len(rows), 3 * 2 * 2 * 2)
        for late, early in zip(rows[::2], rows[1::2]):
            if late["right"] == 0:  # The last pieces of wrong copies.
                self.assertLess(early["x_today"], 1.05, early)
                continue
            self.assertLess(late["x_today"], 1, late)
            self.assertLess(early["ms"], late["ms"], early)

    def test_fairness(self):
        rows = self.rows(
            "--link", "1GB/s", "fairness", "--group-mib", "1", "--groups", "16",
            "--seconds", "0.1", "--warm-up-seconds", "0.05", "--cap", "0.2",
            fields="what share fair_share of_fair all_of_link")
        self.assertEqual(len(rows), 12 + 1 + 2 + 4 + 2 + 4 + 4)

    def test_beside(self):
        rows = self.rows(
            "--link", "1GB/s", "beside", "--group-mib", "1", "--groups", "16",
            "--load-gib", "0.0625", "--loads", "2", "--seconds", "0.5",
            "--pool-gib", "0.0625", "--load-rate", "0.5", "--devices", "2",
            fields="what windows least_of_link median_of_link others_gb_per_s")
        self.assertEqual(len(rows), 6 + 2 + 2)

    def test_pool(self):
        self.rows("pool", "--gib", "0.0625", "--plain-gib", "0.0625",
                  "--rounds", "1",
                  fields="serves_ms whole_ms gb_per_s of_one_thread")

    def test_second_session_on_a_loaded_file_moves_nothing(self):
        try:
            rows = self.rows("disk", "--gib", "0.03125", "--group-mib", "4",
                             "--rounds", "1", fields="what ms moved_bytes")
        except AssertionError as error:
            if "O_DIRECT is not possible" in str(error):
                self.skipTest("/tmp has no O_DIRECT")
            raise
        self.assertEqual(rows[0]["moved_bytes"], 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
