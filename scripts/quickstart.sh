#!/usr/bin/env bash
# hoist's main job, from a bare machine: sets up, builds, and starts a hoistd
# of its own (CUDA if there is a GPU, else emulated). It then loads a model,
# and runs workers that stage its weights group by group on a device budget
# smaller than the model. It stops what it started.
#
#   scripts/quickstart.sh          all-MiniLM-L6-v2: sentence embeddings, by a
#                                  Python, a C++ and, where torch is installed,
#                                  a PyTorch worker, each run twice
#   scripts/quickstart.sh MODEL    any safetensors file or folder: every group
#                                  is staged and verified against the file
#
# Where build/ holds a package of these very sources (scripts/package.sh makes
# one), its programs are used, and nothing is built.
#
# Either way they lie in build/bin/ afterwards.
#
# HOIST_BIN   a folder with hoistd, hoistctl and embed_worker to use instead
# HOIST_VENV  the Python environment of scripts/setup.sh (default build/venv)
#
# All that apt-get, pip and the build said is in build/logs/.
set -euo pipefail
case ${1:-} in
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
  -*) echo "unknown option $1; see scripts/quickstart.sh --help" >&2; exit 2 ;;
esac
if [[ $# -gt 1 || ($# == 1 && ! -e $1) ]]; then
  echo "wants one safetensors file, or a folder of them, and not: $*" >&2
  exit 2
fi
given=${1:+$(realpath "$1")}
cd "$(dirname "$0")/.."
. scripts/progress.lib.sh
. scripts/serve.lib.sh
. scripts/sources.lib.sh

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

# The package in build/ that is of these sources, if there is one.
find_package() {
  local archive wanted=''
  for archive in build/hoist-*-linux-x86_64.tar.gz; do
    [[ -f $archive ]] || continue
    wanted=${wanted:-$(sources_digest)}
    if [[ $(tar -xzOf "$archive" --wildcards '*/share/hoist/built-from' \
      2>/dev/null) == "$wanted" ]]; then
      echo "$archive"
      return
    fi
  done
}

build() {
  progress "build: configuring" build/logs/configure.log \
    cmake --preset release -DHOIST_BUILD_TESTS=OFF
  progress "build" build/logs/build.log \
    cmake --build --preset release -j "$(nproc)" --target \
      hoistd hoistctl hoist_client embed_worker
}

unpack() {  # PACKAGE: to build/unpacked.
  rm -rf build/unpacked
  mkdir -p build/unpacked
  tar -xzf "$1" -C build/unpacked --strip-components 1
  # As in a build's folder, where client/python looks for libhoist.
  ln -s lib build/unpacked/client
}

link_programs() {  # FILE...: from build/bin to these, below build.
  mkdir -p build/bin
  ln -sf "${@/#/../}" build/bin/
}

# Takes the programs of a folder, and libhoist and the Python package that lie
# beside it in a package.
use_programs() {  # FOLDER
  local modules=$1/../python
  bin=$1
  if [[ -f $bin/../lib/libhoist.so.0 ]]; then
    export HOIST_LIBRARY=${HOIST_LIBRARY:-$bin/../lib/libhoist.so.0}
  fi
  [[ -d $modules/hoist ]] || modules=$PWD/client/python
  export PYTHONPATH=$modules${PYTHONPATH:+:$PYTHONPATH}
}

# Makes what is missing; ends with hoistd and the others in $bin.
get_programs() {
  local package no_model=()
  if [[ -n ${HOIST_BIN:-} ]]; then
    use_programs "$(realpath -s "$HOIST_BIN")"
    return
  fi
  if [[ -n $given ]]; then no_model=(--no-model); fi
  package=$(find_package)
  headline "set-up"
  if [[ -n $package ]]; then
    echo "uses $package, which is of these sources: nothing is built"
    scripts/setup.sh --no-build "${no_model[@]}"
    unpack "$package"
    link_programs unpacked/bin/{hoistd,hoistctl,embed_worker}
    use_programs "$PWD/build/unpacked/bin"
    return
  fi
  scripts/setup.sh "${no_model[@]}"
  headline "build"
  timed "build (release)" build
  link_programs release/{daemon/hoistd,client/ctl/hoistctl} \
    release/client/examples/embed_worker
  export HOIST_BUILD_DIR=$PWD/build/release
  use_programs "$PWD/build/bin"
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
      worker "C++ worker, $run run" "$bin/embed_worker" "$model" \
        --socket "$runtime/hoistd.sock"
    done
  fi
  run_torch_workers
}

# A Python that has torch: the virtual environment's, or the system's.
python_with_torch() {
  local candidate
  for candidate in "$python" python3; do
    if "$candidate" client/examples/surroundings.py torch numpy; then
      echo "$candidate"
      return
    fi
  done
}

run_torch_workers() {
  local run
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

# Sets `device`, and `about_device` to a sentence if there is something to say.
# verify.py needs nothing but the driver; the other workers compute.
pick_device() {
  device=emulated about_device=''
  if ! nvidia-smi -L 2>/dev/null | grep GPU >/dev/null; then
    about_device="no GPU found"
  elif [[ -n $given ]] || { [[ -n $with_torch ]] && "$with_torch" -c '
import sys, torch
sys.exit(not torch.cuda.is_available())'; }; then
    device=cuda
    return
  else
    about_device="a GPU is here, but no torch that computes on it"
    about_device+=" (scripts/setup.sh --with-torch installs one)"
  fi
  about_device+=": the device is emulated, by host memory that workers map"
}

clean_up() {
  serve_stop
  rm -rf "$runtime"
}

runtime=$(mktemp -d "${TMPDIR:-/tmp}/hoist-quickstart.XXXXXX")
trap clean_up EXIT
get_programs

with_torch=$(python_with_torch)
python=${with_torch:-$python}
pick_device
if [[ -n $given ]]; then
  model=$given
  name=$(basename "$model" .safetensors)
  pool=auto host_pool=auto
else
  model=$PWD/build/models/minilm
  name=minilm
  pool=64MiB # For 87 MiB of weights, so that they have to take turns.
  host_pool=512MiB
fi

headline "hoistd ($device)"
if [[ -n $about_device ]]; then echo "$about_device"; fi
timed "hoistd up" serve_start "$bin/hoistd" "$runtime" "
[device]
backend = \"$device\"
pool = \"$pool\"
slab = \"64MiB\"
[host]
pool = \"$host_pool\"
[models]
roots = [\"$(dirname "$model")\"]"
cat "$runtime/hoistd.log"

headline "load"
timed "load into the host tier" ctl load "$model" --name "$name"

if [[ -n $given ]]; then
  headline "verify: every group, staged and compared with the file"
  for run in first second; do
    worker "verifying worker, $run run" "$python" client/examples/verify.py \
      "$model" --socket "$runtime/hoistd.sock" --name "$name"
  done
else
  run_minilm_workers
fi

headline "where the bytes are"
if [[ -z $given ]]; then
  echo "2 stages were refused on purpose: in each of its runs the Python worker" \
    "asks for all groups at once, to see that its budget holds"
fi
ctl status
ctl groups "$name"
headline "times"
printf '%s\n' "${times[@]}"
