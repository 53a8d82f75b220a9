#!/usr/bin/env bash
# boot_test.sh BUILD [--packages] [SCRIPT FILE...]
#
# Boots a minimal Debian in systemd-nspawn and runs SCRIPT there, by default
# guest_test.sh with its worker, with the files beside it. Of hoist the root
# holds the archive of BUILD, unpacked, and nothing else: the guest installs it
# by what deploy/README.md says. With --packages it holds Debian packages, in two
# versions, and apt has what those need, so that the guest uses no network.
# The root is made once (debootstrap), kept in $HOIST_SYSTEMD_ROOT, by default
# /var/cache/hoist-test/bookworm-base, and copied for each run.
# Exits with 77, and says why, where it cannot run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(realpath "$1")
packages=0
if [[ ${2:-} == --packages ]]; then
  packages=1
  set -- "$1" "${@:3}"
fi
script=${2:-$here/guest_test.sh}
files=("${@:3}")
if [[ $# -lt 2 ]]; then
  files=("$build/tests/component/systemd/stream_worker")
fi
base=${HOIST_SYSTEMD_ROOT:-/var/cache/hoist-test/bookworm-base}

skip() { echo "skipped: $*"; exit 77; }
[[ $(id -u) == 0 ]] || skip "needs root"
for tool in systemd-nspawn debootstrap; do
  command -v "$tool" >/dev/null || skip "needs $tool"
done

# Into apt's cache of the root; what was fetched once is kept.
apt_fetches() {
  chroot "$root" sh -c 'DEBIAN_FRONTEND=noninteractive apt-get "$@" \
    --download-only install /root/hoist/*.deb' - "$@" >"$base.apt.log" 2>&1
}
fetch_needed() {
  local kept=$base.archives cache=$root/var/cache/apt/archives
  mkdir -p "$kept"
  printf 'APT::%s;\n' 'Get::Assume-Yes "true"' 'Install-Recommends "false"' \
    >"$root/etc/apt/apt.conf.d/90test"
  cp -r "$kept/." "$cache/"
  if apt_fetches --no-download; then return; fi
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  chroot "$root" apt-get -qq update >"$base.apt.log" 2>&1 && apt_fetches ||
    skip "apt cannot fetch what the packages need (see $base.apt.log)"
  cp -u "$cache"/*.deb "$kept/"
}

if [[ ! -e $base/.complete ]]; then
  rm -rf "$base"
  mkdir -p "$(dirname "$base")"
  debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus \
    bookworm "$base" >"$base.log" 2>&1 ||
    { tail -5 "$base.log"; skip "debootstrap failed (see $base.log)"; }
  touch "$base/.complete"
fi
root=$(mktemp -d "$base.XXXXXX")
trap 'rm -rf "$root"' EXIT
cp -a "$base/." "$root/"
mkdir -p "$root/out" "$root/srv/models/tiny"
package=$here/../../../scripts/package.sh
if [[ $packages == 0 ]]; then
  "$package" --from "$build" --dir "$root/root/hoist"
else
  "$package" --deb --from "$build" --dir "$root/root/hoist"
  "$package" --deb --release 2 --from "$build" --dir "$root/root/hoist.new"
  fetch_needed
fi

# One F32 tensor of 64 elements, as safetensors.
header='{"layer.0.w":{"dtype":"F32","shape":[64],"data_offsets":[0,256]}}'
{
  printf "\\x$(printf %02x ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header"
  head -c 256 /dev/zero
} >"$root/srv/models/tiny/model.safetensors"
chmod -R a+rX "$root/srv/models"

install -m 755 "$script" "$root/out/guest_test.sh"
for file in "$here/guest.lib.sh" "${files[@]}"; do install -m 755 "$file" "$root/out/"; done
cat >"$root/etc/systemd/system/guest-test.service" <<'UNIT'
[Unit]
Wants=systemd-journald.service
After=basic.target
[Service]
Type=oneshot
ExecStart=/out/guest_test.sh /root/hoist
StandardOutput=append:/out/log
StandardError=append:/out/log
TimeoutStartSec=240
ExecStopPost=/usr/bin/systemctl --no-block poweroff
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -sf ../guest-test.service \
  "$root/etc/systemd/system/multi-user.target.wants/"

timeout --kill-after=10 400 systemd-nspawn --quiet -D "$root" --boot \
  --register=no --keep-unit --console=pipe </dev/null >"$base.console" 2>&1 ||
  true
if [[ ! -e $root/out/log ]]; then
  tail -5 "$base.console"
  skip "systemd-nspawn does not boot here (see $base.console)"
fi
cat "$root/out/log"
[[ -e $root/out/passed ]]
