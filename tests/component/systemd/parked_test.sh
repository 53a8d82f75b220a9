#!/usr/bin/env bash
# parked_test.sh ARCHIVE
#
# Runs in the booted root: a service that keeps 20,000 descriptors in systemd's
# store, as hoistd keeps them, is killed again and again. PID 1 runs for no more
# than 100 ms at a stretch meanwhile, and nothing is lost.
set -uo pipefail
export LD_LIBRARY_PATH=$1/lib/hoist
most_us=100000
count=20000
failed=0
fail() { echo "FAILED $*"; failed=1; }

cat >/run/systemd/system/parked.service <<UNIT
[Unit]
StartLimitIntervalSec=0
[Service]
Type=notify
ExecStart=/out/park_probe park $count
Environment=LD_LIBRARY_PATH=$LD_LIBRARY_PATH
StandardOutput=append:/out/parked
StandardError=append:/out/parked
Restart=always
RestartSec=0
LimitNOFILE=65536
FileDescriptorStoreMax=4096
UNIT
systemctl daemon-reload

mkfifo /run/watched
/out/park_probe busy </run/watched >/run/report &
exec {input}>/run/watched
systemctl start parked || fail "it does not start: $(cat /out/parked)"
for kill in 1 2 3 4 5 6 7 8; do
  lines=$(wc -l </out/parked)
  systemctl kill -s KILL parked
  for ((tries = 0; tries < 600; tries++)); do
    [[ $(wc -l </out/parked) -gt $lines ]] && break
    read -rt 0.1 <> <(:)  # A pause without a child.
  done
  tail -1 /out/parked | grep -q "^found $count, keeps $count " ||
    fail "kill $kill: $(tail -1 /out/parked)"
done
exec {input}>&-
wait
read -r longest all </run/report
tail -1 /out/parked
echo "PID 1 ran for $longest us at a stretch at most, $all us in all;" \
  "8 kills, $count descriptors parked"
[[ $longest -le $most_us ]] || fail "more than $most_us us"
[[ $all -gt 0 ]] || fail "nothing was measured"
if [[ $failed == 0 ]]; then touch /out/passed; fi
