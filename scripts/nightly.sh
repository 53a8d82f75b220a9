#!/usr/bin/env bash
# Runs all that scripts/test.sh --ci samples or leaves out. It takes hours; the
# last line is as test.sh's.
#
#   scripts/nightly.sh [PART...]     all parts, if none is named
#   scripts/nightly.sh --list
#
#   ci        dev, asan, tsan, with the labels stress, bench and nightly;
#             Python's tests also without the extension
#   plain     a build without unity: each file includes what it uses
#   asan-gcc  gcc's AddressSanitizer and UBSan, with Python over its libhoist
#   package   the unit, conformance and simulation tests of what ships: preset
#             package, and its own test
#   fuzz      each fuzz target for HOIST_FUZZ_SECONDS (600)
#   soak      the system's simulation for HOIST_SIM_MINUTES (60)
#   ray       scripts/test_ray.sh
#   vllm      scripts/test_engine.sh vllm
#   sglang    scripts/test_engine.sh sglang
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/progress.lib.sh
. scripts/test.lib.sh
slow=soak without_programs=''

part_ci() {
  leg dev
  run_pytest dev
  HOIST_PURE_PYTHON=1 run_pytest dev pytest-pure
  sanitized asan "$programs"
  sanitized tsan "$programs"
}

part_plain() { leg plain 'unit|conformance|sim|tidy'; }

part_asan_gcc() { sanitized asan-gcc "$programs"; }

part_package() { leg package 'unit|conformance|sim'; }

part_fuzz() { step "fuzz" fuzz "${HOIST_FUZZ_SECONDS:-600}"; }

part_soak() {
  export HOIST_SIM_MINUTES=${HOIST_SIM_MINUTES:-60}
  run_ctest dev soak -L soak
}

part_ray() { step "ray" scripts/test_ray.sh; }

part_vllm() { step "vllm" scripts/test_engine.sh vllm; }

part_sglang() { step "sglang" scripts/test_engine.sh sglang; }

parts_known() { sed -n 's/^part_\([a-z_]*\)() {.*/\1/p' "$0" | tr _ -; }

case ${1:-} in
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
  --list) parts_known; exit 0 ;;
esac
parts=("$@")
if [[ $# == 0 ]]; then mapfile -t parts < <(parts_known); fi
for part in "${parts[@]}"; do
  declare -F "part_${part//-/_}" >/dev/null ||
    { echo "nightly: no part $part; there are: $(parts_known | xargs);" \
      "see scripts/nightly.sh --help" >&2; exit 2; }
done

begin_results
if step "setup" scripts/setup.sh --for-tests --with-torch; then
  for part in "${parts[@]}"; do "part_${part//-/_}"; done
fi
finish_results
