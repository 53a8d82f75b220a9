#!/usr/bin/env bash
# Tries hoist on a machine with a GPU that has no compiler's packages and no
# network: Ubuntu 24.04 or Debian 12, Python with torch.
#
#   scripts/gpu_check.sh pack [--from BUILD] [TARGET...]
#                                         builds here (BUILD: takes what lies
#                                         there), and lays programs, tests and
#                                         libraries into .gpu/
#   scripts/gpu_check.sh pack-python      adds the Python packages that the
#                                         PyTorch tests need: diffusers, torchao,
#                                         peft, ... (8 MiB)
#   scripts/gpu_check.sh pack-model       adds MiniLM (83 MB)
#   scripts/gpu_check.sh take             there: keeps the parts that lie here
#   scripts/gpu_check.sh there [STEP...]  there, from the repository's root: takes
#                                         the last parts, and runs; all steps if
#                                         none is named
#   scripts/gpu_check.sh steps            lists the steps
#
# Each `pack` cuts all of .gpu/ into .gpu-kit/1, .gpu-kit/2, ..., of less than
# 49 MiB each, since a call carries 64. Carry one a call: `take` for each, or
# `there` with the last.
#
# Each step's log goes to $OUT (default build/gpu_check); a table comes last.
# A step is a function step_<name>; it fails by its exit status, and what it
# writes to fd 3 is its line in the table.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/kit.lib.sh
. scripts/serve.lib.sh

kit=$PWD/.gpu/hoist
logs=${OUT:-$PWD/build/gpu_check}
export PYTHONPATH=$kit/python HOIST_LIBRARY=$kit/lib/libhoist.so.0
export PYTHONDONTWRITEBYTECODE=1

pack_model() {
  scripts/setup.sh || return
  mkdir -p .gpu
  cp -r build/models .gpu/
  kit_cut .gpu 3
}

take() {
  kit_take .gpu || return
  if [[ -d .gpu/models ]]; then mkdir -p build && cp -r .gpu/models build/; fi
}

pack_python() {
  scripts/setup.sh --no-model --for-tests --with-torch || return
  mkdir -p .gpu
  "${HOIST_VENV:-build/venv}/bin/python" scripts/carried_python.py \
    pack .gpu/python.tar.xz || return
  kit_cut .gpu 3
}

# Puts what this machine's Python lacks of pack-python on its path.
use_python() {  # [NAME...]: these alone, and what they need.
  local unpacked=${TMPDIR:-/tmp}/hoist-carried-python missing
  [[ -f .gpu/python.tar.xz ]] || return 0  # What is not there is skipped.
  # Again, they would be found, and so not be named.
  if [[ ${PYTHONPATH:-} == *"$unpacked"* ]]; then return 0; fi
  if [[ .gpu/python.tar.xz -nt $unpacked/.unpacked ]]; then
    rm -rf "$unpacked"
    mkdir -p "$unpacked"
    tar -C "$unpacked" -xJf .gpu/python.tar.xz || return
    touch "$unpacked/.unpacked"
  fi
  missing=$(python3 scripts/carried_python.py use "$unpacked" "$@") || return
  # The tree itself travels, and is never older than what was packed of it.
  export PYTHONPATH=$PWD/client/python${missing:+:$missing}
}

pack() {  # [--from BUILD] [TARGET...]
  local args=() target
  if [[ ${1:-} == --from ]]; then
    args=(--from "${2:?--from needs a build folder}")
    shift 2
  fi
  for target in "$@"; do args+=(--target "$target"); done
  scripts/package.sh --with-tests --dir "$kit" ${args:+"${args[@]}"} || return
  rm -rf "$kit/share/doc"
  # The tests' fake driver must not stand in for the real one.
  find "$kit" -name 'libcuda.so*' -delete
  kit_cut .gpu 3
}

# Runs a GoogleTest program and reports its counts.
gtest() {  # PROGRAM [ARGUMENT...]
  local program=$1 result rc=0
  shift
  result=$(mktemp)
  "$program" --gtest_output="json:$result" "$@" || rc=$?
  python3 - "$result" >&3 <<'PY' || echo "no result" >&3
import json, sys
report = json.load(open(sys.argv[1]))
cases = [c for s in report["testsuites"] for c in s["testsuite"]]
skipped = sum(c["result"] == "SKIPPED" for c in cases)
failed = sum(bool(c.get("failures")) for c in cases)
print(f"{len(cases) - skipped - failed} passed, {failed} failed, "
      f"{skipped} skipped")
PY
  rm -f "$result"
  return "$rc"
}

# A hoistd with a folder of its own, for the steps that need one.
with_hoistd() {  # TOML COMMAND...
  local toml=$1 rc=0
  shift
  runtime=$(mktemp -d)
  if serve_start "$kit/bin/hoistd" "$runtime" "$toml"; then
    export HOIST_SOCKET=$runtime/hoistd.sock
    "$@" || rc=$?
  else
    rc=1
  fi
  serve_stop
  cat "$runtime/hoistd.log"
  rm -rf "$runtime"
  return "$rc"
}

step_machine() {
  nvidia-smi || return
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader |
    head -1 >&3
  uname -a
  ldd --version | head -1
  python3 -c 'import torch; print("torch", torch.__version__)'
}

step_conformance() {
  gtest "$kit/tests/conformance/device_conformance"
}

step_all_tests() {
  local program bad=() count=0
  for program in "$kit"/tests/{unit,conformance,fault,component}/*; do
    [[ -x $program && $program != *_peer ]] || continue
    "$program" --gtest_list_tests >/dev/null 2>&1 </dev/null || continue
    count=$((count + 1))
    "$program" --gtest_brief=1 </dev/null || bad+=("$(basename "$program")")
  done
  echo "$count programs, ${#bad[@]} failed ${bad[*]}" >&3
  [[ $count -gt 0 && ${#bad[@]} == 0 ]]
}

# 2 GiB of bf16 in 64 MiB blocks, where no disk slows it down.
synthetic_model() {
  synthetic=/dev/shm/hoist-gpu-check
  [[ -f $synthetic/model.safetensors ]] && return
  mkdir -p "$synthetic"
  python3 - "$synthetic/model.safetensors" <<'PY'
import sys, torch
from safetensors.torch import save_file
torch.manual_seed(3)
save_file({f"model.layers.{i}.mlp.weight":
           torch.randint(0, 1 << 15, (4096, 8192), dtype=torch.int16)
           .view(torch.bfloat16) for i in range(32)}, sys.argv[1])
PY
}

verify() {  # Twice: the second finds every group resident.
  local run
  for run in 1 2; do
    python3 client/examples/verify.py "$synthetic" --quiet \
      --socket "$HOIST_SOCKET" | tee /dev/fd/2 | tail -1 >&3 || return
  done
}

step_verify_vmm() {
  synthetic_model || return
  with_hoistd $'[device]\nbackend = "cuda"\nshare = "vmm"\n[host]\npool = "3GiB"' verify
}

step_verify_ipc() {
  synthetic_model || return
  with_hoistd $'[device]\nbackend = "cuda"\nshare = "ipc"\n[host]\npool = "3GiB"' verify
}

stream() {
  python3 client/examples/stream.py --socket "$HOIST_SOCKET" --graph "$@" |
    tee -a /dev/fd/2 | tail -2 | head -1 >&3
}

step_stream_vmm() {
  with_hoistd $'[device]\nbackend = "cuda"\n[host]\npool = "8GiB"' stream
}

step_stream_ipc() {
  with_hoistd $'[device]\nbackend = "cuda"\nshare = "ipc"\n[host]\npool = "8GiB"' \
    stream
}

# Where a GPU cannot wait for words in host memory.
step_stream_host_functions() {
  HOIST_STREAM_OPS=0 with_hoistd \
    $'[device]\nbackend = "cuda"\n[host]\npool = "8GiB"' stream
}

step_never_hang() {
  python3 tests/component/plans/never_hang_test.py "$kit/bin/hoistd" -v || return
  echo "kernels, workers and hoistd that stop: nobody else waits" >&3
}

# Whoever dies beside hot and cold pieces in place; HOIST_STORM_SECONDS: how long.
step_storm() {
  HOIST_TEST_BACKEND=cuda HOIST_STORM_SECONDS=${HOIST_STORM_SECONDS:-120} \
    python3 tests/stress/kill_storm/kill_storm_test.py \
    "$kit/bin/hoist-keeper" "$kit/bin/hoistd" -v || return
  echo "its table is above, and in $logs/storm.log" >&3
}

step_embed() {
  if [[ ! -d build/models/minilm ]]; then
    echo "left out: needs pack-model" >&3
    return
  fi
  HOIST_BIN=$kit/bin scripts/quickstart.sh || return
  echo "MiniLM on the GPU, against transformers" >&3
}

# hoist/torch.h in programs that are built there, against that torch.
step_libtorch() {
  mkdir -p build/libtorch
  HOIST_TEST_BACKEND=cuda python3 tests/component/libtorch/libtorch_test.py \
    --hoistd "$kit/bin/hoistd" --prefix "$kit" --work "$PWD/build/libtorch" \
    --parallel "$(nproc)" -v || return
  awk '/^[0-9]+ passed, 0 failed/ { n += $1 } END { print n " passed" }' \
    "$logs/libtorch.log" >&3
}

# Real workers, several processes, a real hoistd; on the emulated device.
step_workers() {
  python3 tests/component/client_workers/workers_test.py "$kit/bin/hoistd" -v
}

# The PyTorch tests; HOIST_PYTEST: more arguments, such as "-k compile -x".
step_torch_conformance() {
  local dirs=() dir rc=0
  use_python || return
  for dir in client/python/tests tests/conformance/torch; do
    if compgen -G "$dir/test_*.py" >/dev/null; then dirs+=("$dir"); fi
  done
  rm -f "$logs/torch.xml"
  # Within the time of a call, so that its result is written.
  # shellcheck disable=SC2086
  HOIST_TEST_DEVICE=cuda HOIST_BIN=$kit/bin HF_HUB_OFFLINE=1 \
    timeout --signal INT 540 python3 -m pytest -q -p no:cacheprovider -rs \
    $(python3 -c 'import xdist' 2>/dev/null && printf -- '-n 6') \
    --durations 15 --junit-xml "$logs/torch.xml" ${HOIST_PYTEST:-} \
    "${dirs[@]}" || rc=$?
  python3 scripts/tally.py "$logs/torch.xml" | tail -1 >&3 || rc=1
  return "$rc"
}

# hoist beside its peers; HOIST_PEERS: other arguments than these, which are
# for a third of the model.
step_peers() {
  use_python diffusers || return
  # shellcheck disable=SC2086
  python3 scripts/bench_peers.py --bin "$kit/bin" --json "$logs/peers.json" \
    ${HOIST_PEERS:---blocks 8 --sets all --passes 5 --seconds 3 --limit 300} ||
    return
  echo "its table is above, and in $logs/peers.log" >&3
}

# A training step with activations offloaded, beside its peers;
# HOIST_ACTIVATIONS: arguments.
step_activations() {
  use_python || return
  # shellcheck disable=SC2086
  python3 scripts/bench_activations.py --bin "$kit/bin" \
    --json "$logs/activations.json" ${HOIST_ACTIVATIONS:-} || return
  echo "its table is above, and in $logs/activations.log" >&3
}

step_bench_gpu() {
  python3 tests/bench/bench_gpu.py --bin "$kit/bin" || return
  echo "its table is above, and in $logs/bench_gpu.log" >&3
}

step_bench_training() {
  python3 tests/bench/bench_training.py --bin "$kit/bin" || return
  echo "its table is above, and in $logs/bench_training.log" >&3
}

step_bench_in_place() {
  python3 tests/bench/bench_in_place.py --bin "$kit/bin" --piece-mb 2 6 24 \
    --tokens 1 16 --gib 1 || return
  python3 tests/bench/bench_in_place.py --bin "$kit/bin" --attach 9200 || return
  echo "its tables are above, and in $logs/bench_in_place.log" >&3
}

# Plain Python over gRPC, no libhoist: IPC handles, a lease a stream.
grpc_worker() {
  python3 client/examples/grpc_worker.py "${HOIST_SOCKET%.sock}.grpc.sock" synthetic \
    --path "$synthetic/model.safetensors" \
    --compare "$synthetic/model.safetensors" \
    --descriptors "$kit/share/hoist/hoist_v1.pb" | tee /dev/fd/2 | tail -1 >&3
}

step_grpc() {
  synthetic_model || return
  with_hoistd $'[device]\nbackend = "cuda"\n[host]\npool = "3GiB"\n[models]\nroots = ["/dev/shm"]' \
    grpc_worker
}

step_status() {
  with_hoistd $'[device]\nbackend = "cuda"' \
    "$kit/bin/hoistctl" status
}

steps_known() {  # In the order they are written in.
  sed -n 's/^step_\([a-z0-9_]*\)() {.*/\1/p' "${BASH_SOURCE[0]}"
}

there() {
  local step rc started bad=0 table note
  local steps=("$@")
  take || return
  [[ -d $kit ]] ||
    { echo "no $kit: run scripts/gpu_check.sh pack, and carry each part" >&2; return 1; }
  if [[ ${#steps[@]} == 0 ]]; then mapfile -t steps < <(steps_known); fi
  mkdir -p "$logs"
  table=$(mktemp) note=$(mktemp)
  for step in "${steps[@]}"; do
    echo "== $step"
    if ! declare -F "step_$step" >/dev/null; then
      echo "no step $step; there are: $(steps_known | xargs)" >&2
      return 2
    fi
    : >"$note"
    started=$SECONDS rc=0
    : >"$logs/$step.log"  # Appended to, also by those who open it anew.
    "step_$step" 3>"$note" >>"$logs/$step.log" 2>&1 </dev/null || rc=$?
    if [[ $rc != 0 ]]; then bad=1; tail -40 "$logs/$step.log"
    elif [[ $step == bench_* || $step =~ ^(peers|activations|storm)$ ]]; then cat "$logs/$step.log"; fi
    printf '%-14s %-6s %5ds  %s\n' "$step" "$([[ $rc == 0 ]] && echo ok ||
      echo FAILED)" $((SECONDS - started)) "$(tr '\n' ' ' <"$note")" >>"$table"
  done
  echo
  cat "$table"
  rm -f "$table" "$note"
  return "$bad"
}

case ${1:-} in
  pack) shift; pack "$@" ;;
  pack-model) pack_model ;;
  pack-python) pack_python ;;
  take) take ;;
  there) shift; there "$@" ;;
  steps) steps_known ;;
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" ;;
  *) echo "unknown command '${1:-}'; see scripts/gpu_check.sh --help" >&2
    exit 2 ;;
esac
