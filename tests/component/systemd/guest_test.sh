#!/usr/bin/env bash
# Runs in the booted root: what deploy/ promises of hoistd.service.
set -uo pipefail
failed=0
check() {  # CLAIM COMMAND...
  local claim=$1
  shift
  if "$@"; then
    echo "ok    $claim"
  else
    echo "FAILED $claim"
    failed=1
  fi
}
same() {  # WANTED GOT
  [[ $2 == "$1" ]] || { echo "      wanted \"$1\", got \"$2\""; return 1; }
}
main_pid() { systemctl show -P MainPID hoistd; }
as() {  # USER GROUPS COMMAND...
  setpriv --reuid "$1" --regid nogroup --groups "$2" "${@:3}"
}
exits_with() {  # CODE COMMAND...
  local wanted=$1 got=0
  "${@:2}" >/tmp/output 2>&1 || got=$?
  [[ $got == "$wanted" ]] || { cat /tmp/output; same "$wanted" "$got"; }
}
denied_by_admin() {
  exits_with 1 "$@" && grep -q "PERMISSION_DENIED.*hoist-admin" /tmp/output
}

systemd-sysusers
systemd-tmpfiles --create hoist.conf
systemctl reset-failed hoistd 2>/dev/null
check "hoistd starts from its unit" systemctl start hoistd
systemctl --no-pager status hoistd | head -5
pid=$(main_pid)

check "it runs as user hoist" same hoist "$(stat -c %U "/proc/$pid")"
check "its folder is closed to others" \
  same "750 hoist hoist" "$(stat -c '%a %U %G' /run/hoist)"
for socket in hoistd.sock hoistd.grpc.sock; do
  check "$socket is for group hoist" \
    same "660 hoist hoist" "$(stat -c '%a %U %G' /run/hoist/$socket)"
done

check "root sees its status" exits_with 0 hoistctl status
cat /tmp/output
check "an admin sees its status" \
  exits_with 0 as 12345 hoist,hoist-admin hoistctl status
check "a member of hoist is no admin" denied_by_admin as 12345 hoist \
  hoistctl status
check "others do not reach it" exits_with 3 as 12345 nogroup hoistctl status
check "a model below models.roots is loaded" \
  exits_with 0 hoistctl load /srv/models/tiny
cat /tmp/output
check "it is there" bash -c 'hoistctl models | grep -q "^tiny "'
check "a path elsewhere is denied" exits_with 1 hoistctl load /etc

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

kill -KILL "$pid"
restarted() {
  local tries
  for ((tries = 0; tries < 200; tries++)); do
    read -rt 0.1 <> <(:)  # A pause without a child.
    [[ $(main_pid) != 0 && $(main_pid) != "$pid" ]] || continue
    [[ $(systemctl is-active hoistd) == active ]] && return 0
  done
  return 1
}
check "it comes back after SIGKILL" restarted
check "and serves again" exits_with 0 hoistctl status

check "it stops cleanly" systemctl stop hoistd
check "with success" same success "$(systemctl show -P Result hoistd)"
check "and leaves no socket" bash -c '! ls /run/hoist/*.sock 2>/dev/null'
check "hoistctl says that there is no daemon" exits_with 3 hoistctl status

printf '[device]\n\nbackendd = "cuda"\n' >/etc/hoist/hoistd.toml
systemctl start hoistd 2>/dev/null
check "a wrong configuration does not start" \
  bash -c '! systemctl is-active --quiet hoistd'
journalctl --sync 2>/dev/null
check "the journal names file, line and key" bash -c \
  'journalctl -u hoistd | grep -q "hoistd.toml:3: device.backendd.*did you mean device.backend"'
systemctl stop hoistd 2>/dev/null

if [[ $failed == 0 ]]; then touch /out/passed; fi
