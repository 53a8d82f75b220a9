#!/usr/bin/env bash
# boot_test.sh HOISTD HOISTCTL
#
# Boots a minimal Debian with deploy/'s files in systemd-nspawn and runs
# guest_test.sh there. The root is made once (debootstrap) and kept in
# $HOIST_SYSTEMD_ROOT, by default /var/cache/hoist-test/bookworm.
# Exits with 77, and says why, where it cannot run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
deploy=$here/../../../deploy
hoistd=$1 hoistctl=$2
root=${HOIST_SYSTEMD_ROOT:-/var/cache/hoist-test/bookworm}

skip() { echo "skipped: $*"; exit 77; }
[[ $(id -u) == 0 ]] || skip "needs root"
for tool in systemd-nspawn debootstrap; do
  command -v "$tool" >/dev/null || skip "needs $tool"
done
[[ -x $hoistd && -x $hoistctl ]] || skip "needs hoistd and hoistctl, built"

if [[ ! -e $root/.complete ]]; then
  rm -rf "$root"
  mkdir -p "$(dirname "$root")"
  debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus \
    bookworm "$root" >"$root.log" 2>&1 ||
    { tail -5 "$root.log"; skip "debootstrap failed (see $root.log)"; }
  touch "$root/.complete"
fi

# The programs with the libraries they need, glibc aside.
libs=$root/usr/lib/hoist-test
rm -rf "$libs" "$root/etc/hoist" "$root/var/lib/hoist" "$root/out"
mkdir -p "$libs" "$root/etc/hoist" "$root/srv/models/tiny" "$root/out"
install -m 755 "$hoistd" "$root/usr/bin/hoistd"
install -m 755 "$hoistctl" "$root/usr/bin/hoistctl"
ldd "$hoistd" "$hoistctl" | awk '$3 ~ /^\// {print $3}' | sort -u |
  grep -vE '/(libc|libm|libpthread|libdl|librt|libresolv|libsystemd)\.so' |
  xargs -I{} cp -L {} "$libs/"
echo /usr/lib/hoist-test >"$root/etc/ld.so.conf.d/hoist-test.conf"
chroot "$root" ldconfig

install -m 644 "$deploy/hoistd.service" "$root/usr/lib/systemd/system/"
install -D -m 644 "$deploy/sysusers.d/hoist.conf" \
  "$root/usr/lib/sysusers.d/hoist.conf"
install -D -m 644 "$deploy/tmpfiles.d/hoist.conf" \
  "$root/usr/lib/tmpfiles.d/hoist.conf"
# The shipped file, with a model root and pools that fit a test machine.
sed -e 's|^roots = \[\]|roots = ["/srv/models"]|' \
  -e '/^\[device\]/,/^\[/ s|^pool = "auto"|pool = "256MiB"|' \
  -e '/^\[host\]/,/^\[/ s|^pool = "auto"|pool = "256MiB"|' \
  "$deploy/hoistd.toml" >"$root/etc/hoist/hoistd.toml"

# One F32 tensor of 64 elements, as safetensors.
header='{"layer.0.w":{"dtype":"F32","shape":[64],"data_offsets":[0,256]}}'
{
  printf "\\x$(printf %02x ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header"
  head -c 256 /dev/zero
} >"$root/srv/models/tiny/model.safetensors"
chmod -R a+rX "$root/srv/models"

install -m 755 "$here/guest_test.sh" "$root/usr/bin/hoist-guest-test"
cat >"$root/etc/systemd/system/hoist-guest-test.service" <<'UNIT'
[Unit]
Wants=systemd-journald.service
After=basic.target
[Service]
Type=oneshot
ExecStart=/usr/bin/hoist-guest-test
StandardOutput=append:/out/log
StandardError=append:/out/log
TimeoutStartSec=240
ExecStopPost=/usr/bin/systemctl --no-block poweroff
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -sf ../hoist-guest-test.service \
  "$root/etc/systemd/system/multi-user.target.wants/"

timeout --kill-after=10 400 systemd-nspawn --quiet -D "$root" --boot \
  --register=no --keep-unit --console=pipe </dev/null >"$root.console" 2>&1 ||
  true
if [[ ! -e $root/out/log ]]; then
  tail -5 "$root.console"
  skip "systemd-nspawn does not boot here (see $root.console)"
fi
cat "$root/out/log"
[[ -e $root/out/passed ]]
