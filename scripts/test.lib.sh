# Sourced by test.sh and nightly.sh, beside progress.lib.sh: legs of the check,
# whose results add up.
#
#   leg PRESET [LABELS]   builds a preset, and runs its tests of these labels
#   sanitized PRESET [LABELS]
#                         the same, with a sample of the long simulations
#   run_pytest PRESET [RESULT]   the Python tests over that build
#   limits PRESET         the CPU time that its files and programs took
#   fuzz SECONDS [SEED]   each fuzz target
#   step NAME COMMAND...  anything else, booked as one test
#
# `slow`: a regular expression of the labels that are left out.
# `without_programs`: the preset, if any, whose GoogleTest programs another runs.

slow_labels='stress|bench|soak|nightly'
# Kinds of C++ test programs; every sanitizer runs all of them.
programs='unit|conformance|fault|component|sim|fuzz'
# Kinds that depend on real time: one retry.
real_time='component|fault|install|systemd|container|stress'

jobs=$(nproc)
results=$PWD/build/results
logs=$PWD/build/logs
venv=${HOIST_VENV:-$PWD/build/venv}
export CCACHE_DIR=${CCACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/ccache}
export CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-5G}
# A clone elsewhere, or another build folder, finds the same objects.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=1
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1}

say() { echo "== $* ($(date -u +%H:%M:%S))"; }

begin_results() {
  rm -rf "$results"
  mkdir -p "$results" "$logs"
}

finish_results() {
  say "all"
  python3 scripts/tally.py "$results"/*.xml build/*/gtest/*.xml
}

step() {  # NAME COMMAND...: runs it, and books it as one test.
  local name=$1 file=${1//[^a-z0-9]/-} rc=0
  shift
  say "$name"
  "$@" || rc=$?
  python3 scripts/tally.py --step "$name" "$rc" "$logs/$file.log" \
    "$results/step-$file.xml"
  return "$rc"
}

build() {  # PRESET
  progress "configure $1" "$logs/configure-$1.log" cmake --preset "$1" \
    $([[ $1 != "$without_programs" ]] || echo -DHOIST_TEST_PROGRAMS=OFF) &&
    progress "build $1" "$logs/build-$1.log" \
      cmake --build --preset "$1" -j "$jobs" -- -k 0
}

run_ctest() {  # PRESET NAME [ARGUMENT...]: ctest's, to choose tests.
  local result=$results/ctest-$1-$2.xml log=$logs/ctest-$1-$2.log
  say "ctest $1, $2"
  ctest --test-dir "build/$1" -j "$jobs" --output-on-failure \
    --output-junit "$result" --output-log "$log" "${@:3}" </dev/null |
    grep -v '^ *Start '
  if [[ -f $result ]]; then
    python3 scripts/tally.py --flaky-from "$log" "$result"
  else
    step "ctest $1 $2 wrote no result" false
  fi
}

run_pytest() {  # PRESET [RESULT]
  local several=() marks=() result=$results/${2:-pytest}.xml
  say "${2:-pytest}"
  if "$venv/bin/python" -c 'import xdist' 2>/dev/null; then
    several=(-n "$((jobs < 8 ? jobs : 8))")
  fi
  if [[ $slow == "$slow_labels" ]]; then marks=(-m 'not nightly'); fi
  # Nothing is fetched: models are made on the spot.
  HOIST_BUILD_DIR=$PWD/build/$1 PYTHONPATH=$PWD/client/python \
    PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 \
    "$venv/bin/python" -m pytest -q -p no:cacheprovider --durations 5 \
    ${several:+"${several[@]}"} ${marks:+"${marks[@]}"} \
    --junit-xml "$result" \
    client/python/tests tests/conformance/torch </dev/null
  [[ -f $result ]] || step "pytest wrote no result" false
}

# Of all that a build has run, once.
limits() {  # PRESET
  local ran=()
  mapfile -t ran < <(find "$results/pytest.xml" "build/$1/gtest" \
    -name '*.xml' 2>/dev/null)
  [[ ${#ran[@]} == 0 ]] ||
    python3 scripts/tally.py --limits "$results/limits.xml" "${ran[@]}"
}

# Where clang has no libFuzzer it says so: the corpus was replayed all the same.
fuzz() {  # [OPTION...]
  local rc=0
  scripts/fuzz.sh "$@" > >(tee "$logs/fuzz.log") 2>&1 || rc=$?
  [[ $rc == 77 ]] || return "$rc"
}

leg() {  # PRESET [LABELS]
  local all=${2:-.}
  rm -rf "build/$1/gtest"
  step "build $1" build "$1" || return
  if [[ $all == python ]]; then return; fi
  run_ctest "$1" once -L "$all" -LE "$slow|$real_time"
  run_ctest "$1" retried -L "$all" -L "$real_time" -LE "$slow" \
    --repeat until-pass:2
}

# Up to thirty times slower there; all of the simulations' steps are dev's.
sanitized() {  # PRESET [LABELS]
  HOIST_SIM_STEPS=5000 HOIST_SIM_PLANS=1000 leg "$@"
}
