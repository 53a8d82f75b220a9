#!/usr/bin/env bash
# hoist's main job, from a bare machine: sets up, builds, starts a hoistd of
# its own (CUDA if there is a GPU, else emulated), loads a model, and runs
# workers that stage its weights group by group on a device budget smaller than
# the model. It stops what it started.
#
#   scripts/quickstart.sh          all-MiniLM-L6-v2: sentence embeddings, by a
#                                  Python, a C++ and, where torch is installed,
#                                  a PyTorch worker, each run twice
#   scripts/quickstart.sh MODEL    any safetensors file or folder: every group
#                                  is staged and verified against the file
#
# HOIST_BIN  a folder with hoistd and hoistctl to use instead of building them
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/serve.lib.sh

if [[ ${1:-} == -* ]]; then
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
  exit 2
fi
venv=${HOIST_VENV:-$PWD/build/venv}
python=$venv/bin/python
[[ -x $python || -z ${HOIST_BIN:-} ]] || python=python3
times=()

headline() { printf '\n== %s\n' "$*"; }

ms_since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN {print (b - a) * 1e3}'; }

timed() {  # WHAT COMMAND...
  local what=$1 started=$EPOCHREALTIME
  shift
  "$@"
  times+=("$(printf '%-44s %9.0f ms' "$what" "$(ms_since "$started")")")
}

build() {
  local log=build/quickstart-build.log
  mkdir -p build
  if ! { cmake --preset release -DHOIST_BUILD_TESTS=OFF &&
    cmake --build --preset release -j "$(nproc)"; } >"$log" 2>&1 </dev/null; then
    tail -40 "$log" >&2
    echo "the build failed; all it said is in $log" >&2
    exit 1
  fi
}

ctl() { "$bin/hoistctl" --socket "$runtime/hoistd.grpc.sock" "$@"; }

# What hoistd read from files since it started, in bytes.
bytes_read() {
  ctl status --json | "$python" -c '
import json, sys
print(int(json.load(sys.stdin)["counters"]["file_read_bytes"]))'
}

worker() {  # WHAT COMMAND...: runs a worker; says what hoistd read for it.
  local before
  before=$(bytes_read)
  timed "$@"
  echo "hoistd read $(($(bytes_read) - before)) bytes from files for this worker"
}

run_minilm_workers() {
  local run
  for run in first second; do
    headline "Python worker, $run run"
    worker "Python worker, $run run" "$python" client/examples/embed.py \
      "$model" --socket "$runtime/hoistd.sock"
  done
  if [[ $device == cuda ]]; then
    echo "the C++ worker computes on the CPU, so it is for emulated devices"
  else
    for run in first second; do
      headline "C++ worker, $run run"
      worker "C++ worker, $run run" "$embed_worker" "$model" \
        --socket "$runtime/hoistd.sock"
    done
  fi
  run_torch_workers
}

# A Python that has torch: the virtual environment's, or the system's.
python_with_torch() {
  local candidate
  for candidate in "$python" python3; do
    if "$candidate" - torch numpy 2>/dev/null <<'PY'
import importlib.util
import sys
sys.exit(any(importlib.util.find_spec(name) is None for name in sys.argv[1:]))
PY
    then
      echo "$candidate"
      return
    fi
  done
}

run_torch_workers() {
  local run with_torch
  with_torch=$(python_with_torch)
  if [[ -z $with_torch ]]; then
    headline "PyTorch worker: torch is not installed; to see it, run" \
      "scripts/setup.sh --with-torch and this again"
    return
  fi
  for run in first second; do
    headline "PyTorch worker (hoist.load), $run run"
    worker "PyTorch worker, $run run" env HF_HUB_OFFLINE=1 "$with_torch" \
      client/examples/torch_worker.py "$model" --socket "$runtime/hoistd.sock"
  done
}

clean_up() {
  serve_stop
  rm -rf "$runtime"
}

device=emulated
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU
then
  device=cuda
fi
if [[ -n ${HOIST_BIN:-} ]]; then
  bin=$(realpath -s "$HOIST_BIN")
  embed_worker=$bin/embed_worker
  if [[ -f $bin/../lib/libhoist.so.0 ]]; then
    export HOIST_LIBRARY=${HOIST_LIBRARY:-$bin/../lib/libhoist.so.0}
  fi
else
  headline "set-up"
  scripts/setup.sh "${@:+--no-model}"
  headline "build"
  timed "build (release)" build
  bin=$PWD/build/quickstart-bin
  mkdir -p "$bin"
  ln -sf ../release/daemon/hoistd ../release/client/ctl/hoistctl "$bin/"
  embed_worker=$PWD/build/release/client/examples/embed_worker
  export HOIST_BUILD_DIR=$PWD/build/release
fi
if [[ $# -gt 0 ]]; then
  model=$(realpath "$1")
  name=$(basename "$model" .safetensors)
  pool=auto
else
  model=$PWD/build/models/minilm
  name=minilm
  pool=64MiB # For 87 MiB of weights, so that they have to take turns.
fi

runtime=$(mktemp -d "${TMPDIR:-/tmp}/hoist-quickstart.XXXXXX")
trap clean_up EXIT
headline "hoistd ($device)"
timed "hoistd up" serve_start "$bin/hoistd" "$runtime" "
[device]
backend = \"$device\"
pool = \"$pool\"
slab = \"64MiB\"
[models]
roots = [\"$(dirname "$model")\"]"
cat "$runtime/hoistd.log"

headline "load"
timed "load into the host tier" ctl load "$model" --name "$name"

if [[ $# -gt 0 ]]; then
  headline "verify: every group, staged and compared with the file"
  for run in first second; do
    worker "verifying worker, $run run" "$python" client/examples/verify.py \
      "$model" --socket "$runtime/hoistd.sock" --name "$name"
  done
else
  run_minilm_workers
fi

headline "where the bytes are"
ctl status
ctl groups "$name"
headline "times"
printf '%s\n' "${times[@]}"
