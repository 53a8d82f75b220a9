#!/usr/bin/env bash
# Builds the fuzz targets (tests/fuzz) with clang's libFuzzer, in the preset asan,
# and runs them, one a core. Fails if one of them finds anything.
#
#   scripts/fuzz.sh [TARGET...] [--seconds N] [--runs N] [--seed N] [--list]
#
#   TARGET       without its "fuzz_"; all, where none is named
#   --seconds N  the longest that each runs (default 10)
#   --runs N     the most inputs that each tries (default: no limit)
#   --seed N     of libFuzzer's choices, from tests/fuzz/corpus alone: a run that can
#                be repeated (default: another one each time, on from build/fuzz/corpus)
#   --list       only say which targets there are
#
# What is found lies in build/fuzz/found, what was tried and is worth going on
# from in build/fuzz/corpus; tests/fuzz/README.md says what to do with either.
# Exits with 77 where clang has no libFuzzer: nothing was fuzzed then.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=10 runs=-1 seed=0 targets=() list=0
while [[ $# -gt 0 ]]; do
  case $1 in
    --seconds) seconds=${2:?--seconds needs a number}; shift ;;
    --runs) runs=${2:?--runs needs a number}; shift ;;
    --seed) seed=${2:?--seed needs a number}; shift ;;
    --list) list=1 ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    -*) echo "unknown option $1; see scripts/fuzz.sh --help" >&2; exit 2 ;;
    *) targets+=("$1") ;;
  esac
  shift
done

mapfile -t known < <(sed -n 's/^hoist_fuzz(NAME \([a-z_]*\).*/\1/p' \
  tests/fuzz/CMakeLists.txt)
if [[ $list == 1 ]]; then printf '%s\n' "${known[@]}"; exit 0; fi
for name in "${targets[@]}"; do
  [[ " ${known[*]} " == *" $name "* ]] ||
    { echo "fuzz: no target $name; there are: ${known[*]}" >&2; exit 2; }
done
if [[ ${#targets[@]} == 0 ]]; then targets=("${known[@]}"); fi

work=build/fuzz
mkdir -p "$work/found"
# The one way to know: its runtime is a package of its own.
if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, long) { return 0; }' |
  clang++ -fsanitize=fuzzer,address,undefined -x c++ - -o "$work/probe" \
    2>"$work/probe.log"; then
  echo "fuzz: clang has no libFuzzer here, nothing was fuzzed; install clang" \
    "and libclang-rt-14-dev (Debian 12) or libclang-rt-18-dev (Ubuntu 24.04)" >&2
  exit 77
fi

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
cmake --preset asan >"$work/configure.log" || { cat "$work/configure.log"; exit 1; }
cmake --build --preset asan -j "$(nproc)" --target "${targets[@]/#/fuzz_}"

# Hash tables order by addresses; the same ones make a run that can be repeated.
fixed=()
if [[ $seed != 0 ]] && setarch -R true 2>/dev/null; then fixed=(setarch -R); fi

fuzz() {  # TARGET
  local name=$1 log=$work/$1.log corpus=$work/corpus/$1
  if [[ $seed != 0 ]]; then
    corpus=$work/corpus.$seed/$name
    rm -rf "$corpus"
  fi
  mkdir -p "$corpus"
  if "${fixed[@]}" build/asan/tests/fuzz/fuzz_"$name" -seed="$seed" \
    -max_total_time="$seconds" -runs="$runs" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="$work/found/$name-" \
    "$corpus" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
    echo "fuzz: $name: $(sed -n 's/^Done //p' "$log")," \
      "$(grep -Eo 'cov: [0-9]+ ft: [0-9]+' "$log" | tail -1)"
  else
    echo "$name" >>"$work/failed"
    tail -n 40 "$log"
    echo "fuzz: $name FAILED; all of it is in $log, the input in $work/found"
  fi
}

: >"$work/failed"
for name in "${targets[@]}"; do
  while [[ $(jobs -rp | wc -l) -ge $(nproc) ]]; do wait -n || true; done
  fuzz "$name" &
done
wait
mapfile -t failed <"$work/failed"
if [[ ${#failed[@]} -gt 0 ]]; then echo "fuzz: failed: ${failed[*]}"; exit 1; fi
