#!/usr/bin/env bash
# bare_root.sh
#
# README's first command in a Debian 12 that has nothing installed, as root and
# with this machine's network. It prints after how many seconds a worker first
# computed, and after how many all was done.
#
# HOIST_BARE_ROOT  a folder for the bare root, which is made by debootstrap and
#                  copied for each run (default: made anew, and not kept)
# HOIST_BARE_BIND  folders to show there too, such as pip's indexes ("dir dir")
# HOIST_BARE_COMMAND  another command than README.md's, to try something there
#
# Exits with 77, and says why, where it cannot run.
set -euo pipefail
checkout=$(cd "$(dirname "$0")/../../.." && pwd)

skip() { echo "skipped: $*"; exit 77; }

# The first line of the block under "Two commands", without its comment.
first_command() {
  sed -n '/^## Two commands$/,/^## /{/^    [^ ]/{s/ *#.*//;s/^ *//;p;q}}' \
    "$checkout/README.md"
}

make_bare_root() {  # FOLDER
  debootstrap --variant=minbase bookworm "$1" >"$1.log" 2>&1 ||
    { tail -5 "$1.log"; skip "debootstrap failed (see $1.log)"; }
  touch "$1/.complete"
}

# What reaches the network from here reaches it from there.
take_network() {
  rm -rf "$root/etc/apt"
  cp -a /etc/apt "$root/etc/"
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  local file
  for file in /etc/pip.conf /usr/local/share/ca-certificates \
    /etc/ssl/certs/ca-certificates.crt "${HOME:-/root}/.config/pip/pip.conf" \
    "${HOME:-/root}/.pip/pip.conf"; do
    [[ -e $file ]] || continue
    mkdir -p "$root/$(dirname "$file")"
    cp -rL "$file" "$root/$(dirname "$file")/"
  done
}

take_checkout() {  # The tracked files, or without git all but what is built.
  mkdir "$root/hoist"
  if git -C "$checkout" rev-parse >/dev/null 2>&1; then
    git -C "$checkout" ls-files -z
  else
    (cd "$checkout" && find . -path ./build -prune -o -type f -print0)
  fi | tar -C "$checkout" --null -T - -c | tar -C "$root/hoist" -x
}

# Runs in namespaces of its own: its mounts and processes go when it ends.
inside() {  # COMMAND
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --kill-child bash -euc '
    root=$1 command=$2
    shift 2
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    for folder in "$@"; do
      mkdir -p "$root$folder"
      mount --rbind "$folder" "$root$folder"
    done
    mapfile -t network < <(env | grep -E \
      "^(PIP_|SSL_CERT|REQUESTS_CA)|^[a-zA-Z_]*_(proxy|PROXY)=" || true)
    exec env -i HOME=/root LANG=C.UTF-8 \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      "${network[@]}" chroot "$root" bash -c "cd /hoist && $command"
  ' inside "$root" "$1" "${binds[@]}" </dev/null
}

# Copies stdin, and notes when a worker first computed.
watch() {
  local line
  while IFS= read -r line; do
    printf '%s\n' "$line"
    if [[ $line == "pass 1: "* && ! -e $work/first ]]; then
      echo $((SECONDS - started)) >"$work/first"
    fi
  done
}

[[ $(id -u) == 0 ]] || skip "needs root"
for tool in debootstrap unshare; do
  command -v "$tool" >/dev/null || skip "needs $tool"
done
unshare --mount --pid --fork true 2>/dev/null || skip "may not make namespaces"
command=${HOIST_BARE_COMMAND:-$(first_command)}
[[ -n $command ]] || { echo "README.md has no first command" >&2; exit 1; }
read -ra binds <<<"${HOIST_BARE_BIND:-}"

work=$(mktemp -d /var/tmp/hoist-bare.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
bare=${HOIST_BARE_ROOT:-$work/bare}
if [[ ! -e $bare/.complete ]]; then
  mkdir -p "$(dirname "$bare")"
  make_bare_root "$bare"
fi
root=$work/root
cp -a "$bare" "$root"
take_network
take_checkout

echo "in a bare root: $command"
started=$SECONDS status=0
inside "$command" 2>&1 | watch | tee "$work/said" || status=$?
echo "first worker's output after $(cat "$work/first" 2>/dev/null || echo ?) s," \
  "end after $((SECONDS - started)) s"
[[ $status == 0 ]] || { echo "it failed: $status" >&2; exit 1; }
if [[ -z ${HOIST_BARE_COMMAND:-} ]]; then
  grep -q "^ok    equal to resident weights" "$work/said"
  if grep "Traceback" "$work/said"; then exit 1; fi
fi
