#!/usr/bin/env bash
# Runs vLLM or SGLang over hoistd, beside the plain engine, on a machine with a GPU
# (of sm_90) that has no network: the engine's CUDA wheels and their torch travel,
# in parts. There are Python 3.12, and torch for CUDA 13 with its nvidia packages,
# transformers, numba and what they need.
#
#   scripts/gpu_engine.sh pack-engine     here: installs the engine and other
#                                         loaders (build/cuda-ENGINE, 8 to 10 GB,
#                                         made once), and lays what the machine
#                                         lacks into .gpu-ENGINE/ (in parts
#                                         330 MiB of vLLM, 580 of SGLang)
#   scripts/gpu_engine.sh pack [--from BUILD]
#                                         here: lays hoist into .gpu-engine-hoist/
#                                         (11 MiB), built, or as it lies in BUILD
#   scripts/gpu_engine.sh take            there: keeps the parts that lie here
#   scripts/gpu_engine.sh there [STEP...] there, from the repository's root: takes
#                                         the last parts, and runs; vLLM: all steps
#                                         if none is named, but `parallel`, for two
#                                         GPUs
#   scripts/gpu_engine.sh steps           lists vLLM's steps
#
# HOIST_ENGINE, here and there: vllm-0.32.0 (the default), vllm-0.33.0, or
# sglang-0.5.23. Carry one part of .gpu-ENGINE-kit/ and .gpu-engine-hoist-kit/ a
# call, as with gpu_check.sh. `there` prints tables; $OUT (default
# build/gpu_engine) has them too, with logs. HOIST_ENGINE_PYTHON: another Python
# than python3.12, here.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/kit.lib.sh

engine=${HOIST_ENGINE:-vllm-0.32.0}
wheels=.gpu-$engine ours=.gpu-engine-hoist
venv=build/cuda-$engine
logs=${OUT:-$PWD/build/gpu_engine}
case $engine in
  vllm-*)
    run=tests/vllm/gpu/run.py
    steps=(replicas loaders kinds in_place budgets rounding rivals sleep serve)
    beside=(runai-model-streamer==0.17.1 fastsafetensors==0.5.0) ;;
  sglang-*)
    run=tests/sglang/gpu.py steps=() beside=() ;;
  *) echo "HOIST_ENGINE=$engine is neither vllm-VERSION nor sglang-VERSION" >&2
    exit 2 ;;
esac

pack_engine() {
  local site
  if [[ ! -e $venv/made ]]; then
    "${HOIST_ENGINE_PYTHON:-python3.12}" -m venv --clear "$venv" || return
    "$venv/bin/pip" install --quiet --no-compile "${engine/-/==}" || return
    for site in "${beside[@]}"; do
      "$venv/bin/pip" install --quiet --no-compile --no-deps "$site" || return
    done
    touch "$venv/made"
  fi
  site=$("$venv/bin/python" -c 'import site; print(*site.getsitepackages())')
  rm -rf "$wheels"
  python3 scripts/gpu_engine/lay.py "${engine%%-*}" "$site" "$wheels/site" || return
  kit_cut "$wheels" 1
}

pack() {  # [--from BUILD]
  local unpacked
  unpacked=$(mktemp -d)
  rm -rf "$ours"
  mkdir "$ours"
  scripts/package.sh --dir "$unpacked" "$@" &&
    python3 -m pip install --quiet --no-deps --no-compile --target "$ours/python" \
      "$unpacked/python" &&
    mkdir "$ours/lib" && cp -r "$unpacked/bin" "$ours/" &&
    cp -r "$unpacked/lib/hoist" "$ours/lib/" &&
    kit_cut "$ours" 3 || return
  rm -rf "$unpacked"
}

take() {
  kit_take "$wheels" && kit_take "$ours"
}

# torch looks for CUDA's libraries beside itself.
link_cuda() {
  local folder nvidia
  nvidia=$(python3 -c 'import nvidia; print(next(iter(nvidia.__path__)))') || return
  for folder in "$nvidia"/*; do
    [[ -e $wheels/site/nvidia/${folder##*/} ]] || ln -s "$folder" "$wheels/site/nvidia/"
  done
}

there() {  # [STEP...]
  local rc=0 work=$PWD/build/gpu_engine site=$PWD/$wheels/site
  take || return
  [[ -d $wheels && -d $ours ]] ||
    { echo "no $wheels or $ours: pack, and carry each part" >&2; return 1; }
  link_cuda || return
  mkdir -p "$logs" "$work"
  if [[ $# == 0 ]]; then set -- "${steps[@]}"; fi
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  unset PYTHONDONTWRITEBYTECODE  # Without .pyc a start takes 20 s longer.
  CUDA_HOME=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
  export CUDA_HOME  # SGLang compiles some kernels as it starts.
  # The machine's cuDNN is older by a minor version than the one torch asks for.
  HOIST_BIN=$PWD/$ours/bin HOIST_ENGINE_MODEL=/dev/shm/hoist-model \
    HOIST_ENGINE_LOGS=$work/logs HOIST_ENGINE_CACHES=$work/caches \
    PYTHONPATH=$site:$site/nvidia_cutlass_dsl/dsl_packages:$PWD/$ours/python \
    PYTHONUNBUFFERED=1 \
    TRITON_CACHE_DIR=$work/caches/triton HF_HUB_OFFLINE=1 \
    VLLM_NO_USAGE_STATS=1 VLLM_USE_FLASHINFER_SAMPLER=0 \
    PYTORCH_SKIP_CUDNN_COMPATIBILITY_CHECK=1 \
    python3 "$run" "$@" 2>&1 | tee "$logs/tables.txt" || rc=$?
  tar -C "$work" -czf "$logs/logs.tar.gz" logs
  return "$rc"
}

case ${1:-} in
  pack-engine) pack_engine ;;
  pack) shift; pack "$@" ;;
  take) take ;;
  there) shift; there "$@" ;;
  steps) printf '%s\n' "${steps[@]}" ;;
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" ;;
  *) echo "unknown command '${1:-}'; see scripts/gpu_engine.sh --help" >&2
    exit 2 ;;
esac
