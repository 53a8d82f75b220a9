#!/usr/bin/env bash
# guest_test.sh ARCHIVE
#
# Runs in the booted root: installs, upgrades and removes hoist by the commands
# in the archive's own deploy/README.md, and checks what deploy/ promises of
# hoistd.service. ARCHIVE is the unpacked archive. stream_worker, which lies
# beside this, works from the first start to before the last stop.
set -uo pipefail
archive=$1
readme=$archive/share/hoist/README.md
beside=$archive
. "$(dirname "$0")/guest.lib.sh"

headings_with_commands() {
  awk '/^## / {heading = substr($0, 4)}
    /^    / && heading != said {print heading; said = heading}' "$readme"
}
useradd alice
useradd bob
useradd carol
installed_files >/tmp/before

check "these are the sections with commands" same \
  "Install Users Start Watch Workers Upgrade Remove From packages" \
  "$(headings_with_commands | paste -sd ' ')"
check "it can be installed" follow Install
check "users may be let in" follow Users
# "First edit hoistd.toml": a root, and pools that fit here.
configure
check "hoistd starts from its unit" follow Start
pid=$(main_pid)

check "systemd finds nothing wrong with the unit" \
  same "" "$(systemd-analyze verify --man=no hoistd.service 2>&1)"
check "its documentation is there" documented /usr/local/share/man
check "it runs as user hoist" same hoist "$(stat -c %U "/proc/$pid")"
check "its folder is closed to others" \
  same "750 hoist hoist" "$(stat -c '%a %U %G' /run/hoist)"
for socket in hoistd.sock hoistd.grpc.sock; do
  check "$socket is for group hoist" \
    same "660 hoist hoist" "$(stat -c '%a %U %G' /run/hoist/$socket)"
done

hoistctl status
check "an admin sees its status" exits_with 0 as bob hoistctl status
check "a member of hoist is no admin" denied_by_admin as alice hoistctl status
check "others do not reach it" exits_with 3 as carol hoistctl status
check "a model below models.roots is loaded" \
  exits_with 0 as bob hoistctl load /srv/models/tiny
cat /tmp/output
check "it is there" bash -c 'hoistctl models | grep -q "^tiny "'
check "a path elsewhere is denied" exits_with 1 hoistctl load /etc
check "its spill folder is its own" \
  same "hoist" "$(stat -c %U /var/lib/hoist/spill)"

status_text() { systemctl show -P StatusText hoistd; }
begins_with() { [[ $2 == "$1"* ]] || same "$1..." "$2"; }
serves=$(status_text)
check "a node that is drained says so" exits_with 0 hoistctl drain
check "and systemd shows it" begins_with "Draining: " "$(status_text)"
check "it takes work again" exits_with 0 hoistctl drain --resume
check "and systemd shows what it serves" same "$serves" "$(status_text)"

check "workers can be given libhoist" follow Workers
check "ld.so finds it" bash -c \
  'ldconfig -p | grep -q "libhoist.so.0 .* => /usr/local/lib/"'
check "compilers find it" test -f /usr/local/include/hoist/hoist.h -a \
  -f /usr/local/lib/libhoist.so
check "the shell finds the completions" \
  bash -n /usr/local/share/bash-completion/completions/hoistctl

start_worker
check "a worker of alice's streams, and holds a lease" worker_goes_on

status_line() { awk -v key="$1:" '$1 == key {print $2}' "/proc/$pid/status"; }
check "no new privileges" same 1 "$(status_line NoNewPrivs)"
check "no capabilities" same 0000000000000000 "$(status_line CapBnd)"
check "system calls are filtered" same 2 "$(status_line Seccomp)"
check "it cannot write to /etc" \
  bash -c "! nsenter -t $pid -m touch /etc/hoist/written 2>/dev/null"
check "it cannot see /home" \
  same "" "$(nsenter -t "$pid" -m ls -A /home /root 2>/dev/null | grep -v :)"
if (ulimit -l unlimited) 2>/dev/null; then
  check "memory may be pinned" same unlimited \
    "$(awk '/Max locked memory/ {print $4}' "/proc/$pid/limits")"
else
  echo "skip  memory may be pinned: this root may not raise RLIMIT_MEMLOCK"
fi

# By hoistd itself: -u would show what systemd says of the unit, too.
logged_reload() {
  journalctl _SYSTEMD_UNIT=hoistd.service | grep -q 'was read again'
}
systemctl reload hoistd
check "a reload is logged" eventually logged_reload
check "and it runs on" same "$pid" "$(main_pid)"

# Metrics on loopback, by "Watch". The network is this machine's own.
port_is_used() { (: <>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
scrape() {
  exec 5<>"/dev/tcp/127.0.0.1/$port" || return 1
  printf 'GET /metrics HTTP/1.1\r\nHost: hoist\r\nConnection: close\r\n\r\n' >&5
  cat <&5 >/tmp/metrics
  exec 5>&-
  grep -q '^HTTP/1.1 200 ' /tmp/metrics &&
    grep -q '^hoist_build_info{.*version=' /tmp/metrics
}
journal_has() { journalctl -u hoistd | grep -q "$1"; }
listens_on() { awk '$4 == "0A" {print $2}' /proc/net/tcp | grep "$1:$(printf %04X "$port")"; }
port=20000
while port_is_used "$port"; do ((++port)); done
cp /etc/hoist/hoistd.toml /tmp/
sed -i "s|^listen = \"\"|listen = \"127.0.0.1:$port\"|" /etc/hoist/hoistd.toml
pid=$(main_pid)
systemctl restart --no-block hoistd
check "without the drop-in the journal names it" \
  eventually journal_has 'AF_INET takes a drop-in.*metrics-loopback.conf'
check "and nobody listens" bash -c "! (: <>/dev/tcp/127.0.0.1/$port) 2>&-"
check "metrics can be had on loopback" follow Watch
check "hoistd runs with the drop-in" eventually restarted
check "Prometheus can read them" eventually scrape
check "it listens on loopback alone" same "0100007F" \
  "$(listens_on '.*' | cut -d: -f1)"
check "the worker goes on" worker_goes_on
cp /tmp/hoistd.toml /etc/hoist/
rm -r /etc/systemd/system/hoistd.service.d
systemctl daemon-reload
check "and without them again" systemctl restart hoistd
check "nobody listens any more" bash -c "! (: <>/dev/tcp/127.0.0.1/$port) 2>&-"

memory=$(host_memory)
check "the host pool's memory is there" test -n "$memory"
check "systemd holds what is kept" same 3 \
  "$(systemctl show -P NFileDescriptorStore hoistd)"
for _ in 1 2 3 4 5 6 7 8; do
  pid=$(main_pid)
  systemctl kill -s KILL hoistd
  check "it is started again after SIGKILL" eventually restarted
  check "and the worker goes on" worker_goes_on
done
check "and serves again" exits_with 0 hoistctl status
check "with the same memory" same "$memory" "$(host_memory)"
check "after systemctl restart too" systemctl restart hoistd
check "it has the same memory" same "$memory" "$(host_memory)"
check "the worker goes on" worker_goes_on
check "nothing was dropped" \
  bash -c '! journalctl -u hoistd | grep -q "is dropped"'

# One that hangs. In less than the minute that the unit gives it.
mkdir -p /run/systemd/system/hoistd.service.d
printf '[Service]\nWatchdogSec=2\n' \
  >/run/systemd/system/hoistd.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart hoistd
pid=$(main_pid)
kill -STOP "$pid"
check "one that hangs is ended, and started again" eventually restarted
check "by the watchdog" bash -c 'journalctl -u hoistd | grep -q "Watchdog timeout"'
check "with the same memory" same "$memory" "$(host_memory)"
check "and the worker goes on" worker_goes_on
pid=$(main_pid)
was=$(passes)
check "while it lives it is left alone" eventually passed $((was + 100))
check "for longer than that" bash -c "read -rt 5 <> <(:); kill -0 $pid"
rm -r /run/systemd/system/hoistd.service.d
systemctl daemon-reload
systemctl restart hoistd

pid=$(main_pid)
touch /opt/hoist/of-the-old-one
check "it can be upgraded" follow Upgrade
check "the new one runs" restarted
check "the worker goes on" worker_goes_on
check "it never connected again" same 1 \
  "$(journalctl -u hoistd | grep -c 'session [0-9]* opened by')"
check "and serves as configured before" \
  exits_with 0 hoistctl load /srv/models/tiny
check "nothing is left of the old one" bash -c \
  '! ls -d /opt/hoist/of-the-old-one /opt/hoist.* 2>/dev/null'
check "nothing was dropped" \
  bash -c '! journalctl -u hoistd | grep -q "is dropped"'
check "the worker ends well" ends_well

check "it stops cleanly" systemctl stop hoistd
check "with success" same success "$(systemctl show -P Result hoistd)"
check "and leaves no socket" bash -c '! ls /run/hoist/*.sock 2>/dev/null'
check "hoistctl says that there is no daemon" exits_with 3 hoistctl status

cp /etc/hoist/hoistd.toml /tmp/
printf '[device]\n\nbackendd = "cuda"\n' >/etc/hoist/hoistd.toml
systemctl start hoistd 2>/dev/null
check "a wrong configuration does not start" \
  bash -c '! systemctl is-active --quiet hoistd'
check "it ends as failed" \
  eventually systemctl is-failed --quiet hoistd
journalctl --sync 2>/dev/null
wrong='hoistd.toml:3: device.backendd.*did you mean device.backend'
check "the journal names file, line and key" \
  bash -c "journalctl -u hoistd | grep -q '$wrong'"
cp /tmp/hoistd.toml /etc/hoist/
systemctl reset-failed hoistd
check "it starts once that is corrected" systemctl start hoistd

pid=$(main_pid)
check "it can be removed" follow Remove
installed_files >/tmp/after
check "what is left is the administrator's" \
  same "> /etc/hoist > /etc/hoist/hoistd.toml" \
  "$(diff /tmp/before /tmp/after | grep '^[<>]' | paste -sd ' ')"
check "no process is left" test ! -e "/proc/$pid"
check "no unit is left" bash -c '! systemctl cat hoistd 2>/dev/null'
check "no user or group is left" bash -c '! getent passwd hoist &&
  ! getent group hoist && ! getent group hoist-admin'

if [[ $failed == 0 ]]; then touch /out/passed; fi
