#!/usr/bin/env bash
# Runs vLLM over hoistd, beside plain vLLM, on a machine with a GPU (of sm_90)
# that has no network: vLLM's CUDA wheel and its torch travel, in parts. There
# are Python 3.12, and torch for CUDA 13 with its nvidia packages, transformers,
# numba and what they need.
#
#   scripts/gpu_vllm.sh pack-vllm         here: installs vLLM and other loaders
#                                         (build/vllm-cuda-VERSION, 7.9 GB, made
#                                         once), and lays what the machine lacks
#                                         into .gpu-vllm-VERSION/ (1.9 GB; in
#                                         parts 310 MiB)
#   scripts/gpu_vllm.sh pack [--from BUILD]
#                                         here: lays hoist into .gpu-vllm-hoist/
#                                         (11 MiB), built, or as it lies in BUILD
#   scripts/gpu_vllm.sh take              there: keeps the parts that lie here
#   scripts/gpu_vllm.sh there [STEP...]   there, from the repository's root: takes
#                                         the last parts, and runs; all steps if
#                                         none is named
#   scripts/gpu_vllm.sh steps             lists the steps
#
# Carry one part of .gpu-vllm-VERSION-kit/ and .gpu-vllm-hoist-kit/ a call, as
# with gpu_check.sh. `there` prints tables; $OUT (default build/gpu_vllm) has them
# too, with logs. HOIST_VLLM: vLLM's version (0.32.0), here and there.
# HOIST_VLLM_PYTHON: another Python than python3.12, here.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/kit.lib.sh

version=${HOIST_VLLM:-0.32.0}
wheels=.gpu-vllm-$version ours=.gpu-vllm-hoist
venv=build/vllm-cuda-$version
logs=${OUT:-$PWD/build/gpu_vllm}
steps=(replicas loaders kinds budgets rivals sleep serve rounding)

pack_vllm() {
  local site
  if [[ ! -e $venv/made ]]; then
    "${HOIST_VLLM_PYTHON:-python3.12}" -m venv --clear "$venv" || return
    "$venv/bin/pip" install --quiet --no-compile "vllm==$version" || return
    "$venv/bin/pip" install --quiet --no-compile --no-deps \
      runai-model-streamer==0.17.1 fastsafetensors==0.5.0 || return
    touch "$venv/made"
  fi
  site=$("$venv/bin/python" -c 'import site; print(*site.getsitepackages())')
  rm -rf "$wheels"
  python3 scripts/gpu_vllm/lay.py "$site" "$wheels/site" || return
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
  local rc=0 work
  work=$PWD/build/gpu_vllm
  take || return
  [[ -d $wheels && -d $ours ]] ||
    { echo "no $wheels or $ours: pack, and carry each part" >&2; return 1; }
  link_cuda || return
  mkdir -p "$logs" "$work"
  if [[ $# == 0 ]]; then set -- "${steps[@]}"; fi
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  unset PYTHONDONTWRITEBYTECODE  # Without .pyc a start takes 20 s longer.
  # The machine's cuDNN is older by a minor version than the one torch asks for.
  HOIST_BIN=$PWD/$ours/bin HOIST_VLLM_MODEL=/dev/shm/hoist-vllm-model \
    HOIST_VLLM_LOGS=$work/logs HOIST_VLLM_CACHES=$work/caches \
    PYTHONPATH=$PWD/$wheels/site:$PWD/$ours/python PYTHONUNBUFFERED=1 \
    TRITON_CACHE_DIR=$work/caches/triton HF_HUB_OFFLINE=1 \
    VLLM_NO_USAGE_STATS=1 VLLM_USE_FLASHINFER_SAMPLER=0 \
    PYTORCH_SKIP_CUDNN_COMPATIBILITY_CHECK=1 \
    python3 tests/vllm/gpu/run.py "$@" 2>&1 | tee "$logs/tables.txt" || rc=$?
  tar -C "$work" -czf "$logs/logs.tar.gz" logs
  return "$rc"
}

case ${1:-} in
  pack-vllm) pack_vllm ;;
  pack) shift; pack "$@" ;;
  take) take ;;
  there) shift; there "$@" ;;
  steps) printf '%s\n' "${steps[@]}" ;;
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" ;;
  *) echo "unknown command '${1:-}'; see scripts/gpu_vllm.sh --help" >&2
    exit 2 ;;
esac
