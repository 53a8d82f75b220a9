#!/usr/bin/env bash
# packages_test.sh FOLDER
#
# Runs in the booted root: installs, upgrades, removes and purges hoist's Debian
# packages by the commands below "From packages" in deploy/README.md, as the
# package itself brings it. FOLDER holds them, FOLDER.new those of a higher
# version. stream_worker computes while they are upgraded.
set -uo pipefail
beside=$1
dpkg-deb -x "$beside"/hoist_*.deb /run/unpacked
readme=/run/unpacked/usr/share/doc/hoist/README.md
. "$(dirname "$0")/guest.lib.sh"
export DEBIAN_FRONTEND=noninteractive

version() { dpkg-query -W -f '${Version}' "$1" 2>/dev/null; }
state() { dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null; }
enabled() { systemctl is-enabled hoistd 2>/dev/null; }

useradd alice
useradd carol
installed_files >/tmp/before
getent passwd | cut -d: -f1 | sort >/tmp/users.before
getent group | cut -d: -f1 | sort >/tmp/groups.before

run_all() {  # COMMANDS, in the packages' folder.
  [[ -n $1 ]] || { echo "      no commands"; return 1; }
  (cd "$beside" && bash -euxo pipefail -c "$1") 2>&1 | sed 's/^/      /'
}
installed_again() { run_all "apt install --reinstall ./hoist_*.deb" >/run/said; }
said() { journalctl -u hoistd | grep -c "$1"; }  # How often, so far.
installing=$(commands "Install the packages")
check "hoist can be installed" run_all "$(grep '^apt ' <<<"$installing")"
check "hoistd was started by that" same active "$(systemctl is-active hoistd)"
check "and will be at each boot" same enabled "$(enabled)"
check "there is its user" same hoist "$(id -gn hoist)"
check "and the group of admins" getent group hoist-admin
configure
check "what the machine needs is taken by a restart" \
  run_all "$(grep -v '^apt ' <<<"$installing")"
check "systemd finds nothing wrong with the unit" \
  same "" "$(systemd-analyze verify --man=no hoistd.service 2>&1)"
check "its documentation is there" documented /usr/share/man

check "workers can be given libhoist" follow "Workers' packages"
check "ld.so finds it" bash -c 'ldconfig -p | grep -q libhoist.so.0'
check "Python finds the package, and that libhoist" same \
  "/usr/lib/python3/dist-packages/hoist/__init__.py" "$(cd / && python3 -c '
import hoist
assert hoist.library_path().startswith("/usr/lib/"), hoist.library_path()
print(hoist.__file__)')"
check "and pip would know it" same "$(version libhoist0 | cut -d- -f1)" \
  "$(python3 -c 'from importlib import metadata
print(metadata.version("hoist-client"))')"

usermod -aG hoist alice
check "a model is loaded" exits_with 0 hoistctl load /srv/models/tiny
check "it is there" bash -c 'hoistctl models | grep -q "^tiny "'
start_worker
check "a worker of alice's streams, and holds a lease" worker_goes_on
check "Python's workers are served" exits_with 0 as alice \
  python3 -c 'import hoist; hoist.connect(connect_deadline=10).close()'
check "who is not in hoist is not" exits_with 1 as carol \
  python3 -c 'import hoist; hoist.connect(connect_deadline=0)'
hoistctl status

memory=$(host_memory)
check "the host pool's memory is there" test -n "$memory"
pid=$(main_pid)
old=$(version hoist)
opened=$(said 'session [0-9]* opened by')
dropped=$(said 'is dropped')
beside=$1.new
check "sessions that are opened are counted" test "$opened" -gt 0
check "the packages can be upgraded" follow "Upgrade the packages"
check "to a higher version" dpkg --compare-versions \
  "$(version hoist)" gt "$old"
check "with libhoist" same "$(version hoist)" "$(version libhoist0)"
check "another hoistd runs" restarted
check "it has taken over the same memory" same "$memory" "$(host_memory)"
check "the model is still there" bash -c 'hoistctl models | grep -q "^tiny "'
check "the worker goes on, every byte as before" worker_goes_on
check "it never connected again" same "$opened" \
  "$(said 'session [0-9]* opened by')"
check "nothing was dropped" same "$dropped" "$(said 'is dropped')"
check "the administrator's configuration is as it was" \
  grep -q '^roots = \["/srv/models"\]' /etc/hoist/hoistd.toml

# A configuration that the new hoistd refuses leaves the old one running.
pid=$(main_pid)
cp /etc/hoist/hoistd.toml /run/
sed -i 's/^backend = .*/backendd = "cuda"/' /etc/hoist/hoistd.toml
check "a package is configured all the same" installed_again
check "the hoistd that runs is left alone" same "$pid" "$(main_pid)"
check "and apt says why" grep -q 'did you mean device.backend' /run/said
cp /run/hoistd.toml /etc/hoist/
check "the worker goes on" worker_goes_on

# Who has stopped hoistd finds it stopped after an upgrade.
check "the worker ends well" ends_well
systemctl stop hoistd
check "a package is configured while hoistd is stopped" installed_again
check "it stays stopped" same inactive "$(systemctl is-active hoistd)"
systemctl start hoistd

pid=$(main_pid)
removing=$(commands "Remove the packages")
check "it can be removed" run_all "$(grep '^apt remove ' <<<"$removing")"
check "no process is left" test ! -e "/proc/$pid"
check "the configuration is" test -f /etc/hoist/hoistd.toml
check "and the users" id hoist
check "and what it wrote" test -d /var/lib/hoist
check "dpkg calls that removed" same config-files "$(state hoist)"
check "it can be purged" run_all "$(grep -v '^apt remove ' <<<"$removing")"
check "no user is left" same "" \
  "$(getent passwd | cut -d: -f1 | sort | diff /tmp/users.before -)"
check "no group is left" same "" \
  "$(getent group | cut -d: -f1 | sort | diff /tmp/groups.before -)"
check "no unit is left" bash -c '! systemctl cat hoistd 2>/dev/null'
apt purge libhoist0 python3-hoist-client >/dev/null 2>&1
installed_files >/tmp/after
check "no file of its own is left" same "" \
  "$(diff /tmp/before /tmp/after | grep -i hoist)"

if [[ $failed == 0 ]]; then touch /out/passed; fi
