#!/usr/bin/env bash
# Runs Ray's nodes over a hoistd each, on emulated devices: tests/ray, with Ray
# in an environment of its own (build/ray-venv, made anew when what it needs
# changes). They are no part of scripts/test.sh, as each cluster starts many
# processes.
#
#   scripts/test_ray.sh [-- PYTEST ARGUMENT...]
#
# HOIST_BUILD_DIR names a build that is there already; without it build/dev is
# built. The package is installed as a wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0
fi
if [[ $# -gt 0 && $1 != -- ]]; then
  echo "unknown option $1; see scripts/test_ray.sh --help" >&2; exit 2
fi

if [[ -z ${HOIST_BUILD_DIR:-} ]]; then
  cmake --preset dev
  cmake --build --preset dev --target hoistd hoistctl hoist_client
  HOIST_BUILD_DIR=$PWD/build/dev
fi
export HOIST_BUILD_DIR

venv=build/ray-venv
# grpcio asks raylets how full their object stores are.
needs=('ray[serve]==2.60.0' numpy pytest==9.0.2 grpcio tqdm)
if [[ "$(cat "$venv/made" 2>/dev/null)" != "${needs[*]}" ]]; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet "${needs[@]}"
  echo "${needs[*]}" >"$venv/made"
fi
"$venv/bin/pip" install --quiet --no-deps --force-reinstall ./client/python

exec "$venv/bin/python" -m pytest -p no:cacheprovider tests/ray "${@:2}"
