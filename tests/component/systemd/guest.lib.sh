# What the tests in the booted root share; sourced. `readme` is the README.md whose
# commands are run, `beside` the folder that they are run in.
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
as() {  # USER COMMAND...
  setpriv --reuid "$1" --regid "$1" --init-groups "${@:2}"
}
exits_with() {  # CODE COMMAND...
  local wanted=$1 got=0
  "${@:2}" >/tmp/output 2>&1 || got=$?
  [[ $got == "$wanted" ]] || { cat /tmp/output; same "$wanted" "$got"; }
}
denied_by_admin() {
  exits_with 1 "$@" && grep -q "PERMISSION_DENIED.*hoist-admin" /tmp/output
}
eventually() {  # COMMAND...: true within 20 s.
  local tries
  for ((tries = 0; tries < 200; tries++)); do
    if "$@"; then return 0; fi
    read -rt 0.1 <> <(:)  # A pause without a child.
  done
  return 1
}

# The commands below a heading: what is indented by four.
commands() {  # HEADING, of any depth
  awk -v heading="$1" '/^##/ {sub(/^#+ /, ""); on = $0 == heading}
    on && /^    / {print substr($0, 5)}' "$readme"
}
follow() {  # HEADING: runs its commands as they stand there.
  local script
  script=$(commands "$1")
  [[ -n $script ]] || { echo "      \"$1\" has no commands"; return 1; }
  (cd "$beside" && bash -euxo pipefail -c "$script") 2>&1 | sed 's/^/      /'
}
installed_files() {
  find /etc /home /opt /usr /var -xdev ! -path '/etc/*-' ! -path '/var/log/*' \
    ! -path '/var/tmp/*' ! -path '/var/lib/systemd/*' | sort
}

start_worker() {  # Of alice's; `worker` is its process.
  mkdir -m 777 /run/worker
  # Not by as(), whose process would be another.
  setpriv --reuid alice --regid alice --init-groups \
    /out/stream_worker /run/worker/passes >/run/worker/log 2>&1 &
  worker=$!
}
passes() {
  local digits
  digits=$(cat /run/worker/passes 2>/dev/null)
  echo $((10#${digits:-0}))
}
passed() { kill -0 "$worker" && (($(passes) > $1)); }
# Each pass compares all bytes and addresses; one that began before counts not.
worker_goes_on() {
  eventually passed $(($(passes) + 3)) || { cat /run/worker/log; return 1; }
}
ends_well() { kill "$worker" && wait "$worker" || { cat /run/worker/log; false; }; }

restarted() {
  [[ $(main_pid) != 0 && $(main_pid) != "$pid" ]] &&
    [[ $(systemctl is-active hoistd) == active ]]
}

# Of 256 MiB, which this root has; and where models and spilled images lie.
configure() {
  sed -i -e 's|^roots = \[\]|roots = ["/srv/models"]|' \
    -e 's|^spill_dir = ""|spill_dir = "/var/lib/hoist/spill"|' \
    -e '/^\[device\]/,/^\[/ s|^pool = "auto"|pool = "256MiB"|' \
    -e '/^\[host\]/,/^\[/ s|^pool = "auto"|pool = "256MiB"|' \
    /etc/hoist/hoistd.toml
}

# The inode of the host pool's memory, which systemd holds as well.
host_memory() {
  local fd
  for fd in /proc/"$(main_pid)"/fd/*; do
    if [[ $(readlink "$fd") == *hoist-host* ]]; then stat -L -c %i "$fd"; fi
  done
}

documented() {  # FOLDER: that of the manual's pages.
  local name
  for name in $(systemctl show -P Documentation hoistd | tr -d '"'); do
    [[ $name =~ ^man:(.*)\(([0-9])\)$ ]] &&
      ls "$1/man${BASH_REMATCH[2]}/${BASH_REMATCH[1]}".* >/dev/null || { echo "      no $name"; return 1; }
  done
}
