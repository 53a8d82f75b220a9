#!/usr/bin/env bash
# Sets up what is missing, builds, and runs the tests. The last line is
# "N passed, N failed, N skipped", over C++ and Python together.
#
#   scripts/test.sh [--preset NAME] [--label REGEX] [--all] [--ci] [--no-torch]
#
#   --preset NAME  build and test this preset of CMakePresets.json (default dev)
#   --label REGEX  only tests whose label matches: unit, conformance, fault,
#                  component, sim, fuzz, tidy, install, stress, bench, nightly,
#                  python
#   --all          the slow labels stress, bench and nightly too; not soak
#   --ci           what CI runs: dev without the GoogleTest programs that asan
#                  runs, asan (clang: address, undefined, thread safety), some
#                  seconds of each fuzz target and, within 3,900 s, tsan
#   --no-torch     do not install torch; without it its tests are skipped
#
# A test of real processes (labels component, fault, install, systemd, container;
# Python: real_time) that fails runs once more; if it passes then, it is counted
# as passed and listed as flaky. A Python file or a program that takes too much CPU
# time is a failure (scripts/tally.py --limits).
#
# Results are in build/results/*.xml (JUnit), logs in build/logs/.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/progress.lib.sh
. scripts/test.lib.sh

preset=dev label='' slow=$slow_labels ci=0 torch=--with-torch without_programs=''
while [[ $# -gt 0 ]]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift ;;
    --label) label=${2:?--label needs a regular expression}; shift ;;
    --all) slow='soak' ;;
    --ci) ci=1 without_programs=dev ;;
    --no-torch) torch='' ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "unknown option $1; see scripts/test.sh --help" >&2; exit 2 ;;
  esac
  shift
done

begin_results
if step "setup" scripts/setup.sh --for-tests; then
  # Apart: where torch cannot be had, all the other tests run all the same.
  if [[ -n $torch ]]; then
    step "setup torch" scripts/setup.sh --for-tests "$torch"
  fi
  leg "$preset" "$label"
  if [[ -z $label || $label == python ]]; then run_pytest "$preset"; fi
  # Sanitizers, and what is long and runs at night, have no limit.
  if [[ $preset == dev && $slow == "$slow_labels" ]]; then limits "$preset"; fi
  if [[ $ci == 1 ]]; then
    sanitized asan "$programs"
    # A run that can be repeated: other seeds are tried at night.
    step "fuzz" fuzz --seconds 6 --runs 100000 --seed 1
    # CI ends a check after 5,400 s; tsan took less than 1,450 there.
    if ((SECONDS < 3900)); then
      sanitized tsan "unit"
    else
      say "tsan is left to the night: $SECONDS s are over"
    fi
  fi
fi
finish_results
