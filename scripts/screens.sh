#!/usr/bin/env bash
# What hoistctl shows of a small node at work, as Markdown: deploy/SCREENS.md is
# what this printed.
#
#   scripts/screens.sh [BUILD]  BUILD: the build folder (default build/dev)
#
# It starts a hoistd of its own with an emulated device of 64 MiB, and loads a
# model of 96. It shows the model while one worker streams it and another has
# leased a group of it.
set -euo pipefail
case ${1:-} in
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
  -*) echo "unknown option $1; see scripts/screens.sh --help" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
. scripts/serve.lib.sh
build=$(realpath "${1:-build/dev}")
hoistctl=$build/client/ctl/hoistctl
python=python3
[[ ! -x build/venv/bin/python ]] || python=build/venv/bin/python
folder=$(mktemp -d)
workers=()
finish() {
  for worker in "${workers[@]}"; do kill "$worker" 2>/dev/null || true; done
  serve_stop
  rm -rf "$folder"
}
trap finish EXIT

export PYTHONPATH=$PWD/client/python PYTHONDONTWRITEBYTECODE=1
HOIST_LIBRARY=$(find "$build/client" -maxdepth 1 -name 'libhoist.so.*' -print -quit)
export HOIST_LIBRARY HOIST_SOCKET=$folder/hoistd.sock

"$python" - "$folder/llama.safetensors" <<'PYTHON'
import json, os, sys
header, at = {}, 0
for name in ["embed", *(f"layers.{i}" for i in range(8))]:
    size = 32 << 20 if name == "embed" else 8 << 20
    header[f"{name}.weight"] = {"dtype": "BF16", "shape": [size // 2048, 1024],
                                "data_offsets": [at, at + size]}
    at += size
text = json.dumps(header).encode()
with open(sys.argv[1], "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text + os.urandom(at))
PYTHON

serve_start "$build/daemon/hoistd" "$folder" "
[device]
backend = \"emulated\"
pool = \"64MiB\"
slab = \"8MiB\"
[host]
pool = \"256MiB\"
[models]
roots = [\"$folder\"]"

start() {  # NAME CODE: a worker, and returns once it has said so.
  "$python" -c "import signal, hoist
session = hoist.connect(name='$1')
model = session.model('llama')
$2" >"$folder/$1" &
  workers+=($!)
  until [[ -s $folder/$1 ]]; do
    kill -0 $!
    sleep 0.1
  done
}

show() {  # WORDS...: what hoistctl says to them, without what differs each time.
  printf '\n    hoistctl %s\n\n```\n' "${*//$folder\//}"
  "$hoistctl" "$@" 2>&1 | sed "s|$folder/||g" || true
  printf '```\n'
}

cat <<'MARKDOWN'
# What hoistctl shows

Printed by `scripts/screens.sh`: a node whose device (emulated) may hold 64 MiB. A model
of 96 MiB is on the host; the worker `generate` streams it through a plan of 40 MiB,
and `embed` has leased one layer.
MARKDOWN
"$hoistctl" load "$folder/llama.safetensors" --name llama >"$folder/loaded"
start embed "lease = session.stage(model['layers.3'], deadline=30)
print('leased', flush=True)
signal.pause()"
start generate "plan = session.set_plan(model, budget=40 << 20)
print('streams', flush=True)
while True:
    for group in model.groups:
        with plan.use(group):
            pass
    plan.end_pass()"
show status
show top --count 1
show sessions
show plans
show groups llama
show features --all
show explain llama
show explain llama layers.3
show trace record --for 500ms --out "$folder/t.json"
show doctor --no-disk
