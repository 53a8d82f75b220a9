#!/usr/bin/env bash
# Sets up what is missing, builds, and runs the tests. The last line is
# "N passed, N failed, N skipped", over C++ and Python together.
#
#   scripts/test.sh [--preset NAME] [--label REGEX] [--all] [--ci] [--no-torch]
#
#   --preset NAME  build and test this preset of CMakePresets.json (default dev)
#   --label REGEX  only tests whose label matches: unit, conformance, fault,
#                  component, sim, fuzz, tidy, stress, bench, python
#   --all          the slow labels stress and bench too; not soak (tests/sim)
#   --ci           what CI runs: dev, then the asan, the TSan, the clang leg and
#                  some seconds of each fuzz target
#   --no-torch     do not install torch; without it its tests are skipped
#
# Results lie in build/results/*.xml (JUnit).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

preset=dev label='' slow='stress|bench|soak' ci=0 torch=--with-torch
while [[ $# -gt 0 ]]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift ;;
    --label) label=${2:?--label needs a regular expression}; shift ;;
    --all) slow='soak' ;;
    --ci) ci=1 ;;
    --no-torch) torch='' ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "unknown option $1; see scripts/test.sh --help" >&2; exit 2 ;;
  esac
  shift
done

jobs=$(nproc)
ninja_flags=(-k 0)
if [[ ! -t 1 ]]; then ninja_flags+=(--quiet); fi  # Only what went wrong.
results=$PWD/build/results
venv=${HOIST_VENV:-$PWD/build/venv}
export CCACHE_DIR=${CCACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/ccache}
export CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-5G}
# A clone elsewhere, or another build folder, finds the same objects.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=1
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1}

say() { echo "== $* ($(date -u +%H:%M:%S))"; }

step() {  # NAME COMMAND...: runs it, and books it as one test.
  local name=$1 rc=0
  shift
  say "$name"
  "$@" || rc=$?
  python3 scripts/tally.py --step "$name" "$rc" \
    "$results/step-${name//[^a-z0-9]/-}.xml"
  return "$rc"
}

build() {  # PRESET [TARGET...]
  local name=$1
  shift
  cmake --preset "$name" >"$results/configure-$name.log" 2>&1 ||
    { cat "$results/configure-$name.log"; return 1; }
  cmake --build --preset "$name" -j "$jobs" ${1:+--target "$@"} \
    -- "${ninja_flags[@]}"
}

run_ctest() {  # PRESET LABELS [NOT-THESE]
  local args=(--test-dir "build/$1" -j "$jobs" --output-on-failure --no-tests=error
    --output-junit "$results/ctest-$1.xml" -LE "$slow")
  say "ctest $1 ${2:+(labels $2)}"
  ctest "${args[@]}" ${2:+-L "$2"} ${3:+-E "$3"} </dev/null | grep -v '^ *Start '
  [[ -f $results/ctest-$1.xml ]] || step "ctest $1 wrote no result" false
}

run_pytest() {  # PRESET
  local dirs=() dir several=()
  for dir in client/python/tests tests/conformance/torch; do
    if compgen -G "$dir/test_*.py" >/dev/null; then dirs+=("$dir"); fi
  done
  say "pytest ${dirs[*]}"
  if "$venv/bin/python" -c 'import xdist' 2>/dev/null; then
    several=(-n "$((jobs < 8 ? jobs : 8))")
  fi
  # Nothing is fetched: models are made on the spot.
  HOIST_BUILD_DIR=$PWD/build/$1 PYTHONPATH=$PWD/client/python \
    PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 \
    "$venv/bin/python" -m pytest -q -p no:cacheprovider --durations 5 \
    ${several:+"${several[@]}"} \
    --junit-xml "$results/pytest.xml" "${dirs[@]}" </dev/null
  [[ -f $results/pytest.xml ]] || step "pytest wrote no result" false
}

# Where clang has no libFuzzer it says so: the corpus was replayed all the same.
fuzz() {
  local rc=0
  scripts/fuzz.sh --seconds 6 || rc=$?
  [[ $rc == 77 ]] || return "$rc"
}

# Tests of programs that the sanitizers' legs do not build (tests/CMakeLists.txt),
# and those of the simulation's own checks, which run no code of their own.
left_out='component\.(Bench|Client|GrpcWorker|NeverHang|StreamExample)'
left_out+='|unit\.Libhoist|SystemSimMutant|NOT_BUILT'

leg() {  # PRESET LABELS [TARGET...]: build, then test.
  step "build $1" build "$1" "${@:3}" || return
  if [[ $2 != python ]]; then run_ctest "$1" "$2" "${3:+$left_out}"; fi
  if [[ $1 == "$preset" && (-z $2 || $2 == python) ]]; then run_pytest "$1"; fi
}

rm -rf "$results"
mkdir -p "$results"
if step "setup" scripts/setup.sh --for-tests; then
  # Apart: where torch cannot be had, all the other tests run all the same.
  if [[ -n $torch ]]; then
    step "setup torch" scripts/setup.sh --for-tests "$torch"
  fi
  leg "$preset" "$label"
  if [[ $ci == 1 ]]; then
    # Thirty times slower there; the million steps are the first leg's.
    HOIST_SIM_STEPS=15000 leg asan 'unit|conformance|fault|component|sim|fuzz' hoist_asan_tests
    leg tsan unit hoist_tsan_tests
    step "clang thread safety" build clang hoistd hoist_client
    step "fuzz" fuzz
  fi
fi
say "all"
python3 scripts/tally.py "$results"/*.xml
