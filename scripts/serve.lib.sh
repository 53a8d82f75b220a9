# Sourced: a hoistd of one's own on a private runtime folder.
#
#   serve_start HOISTD FOLDER [TOML]  writes FOLDER/hoistd.toml, starts HOISTD
#                                     and returns once it answers
#   serve_stop                        stops it; also safe if it never started
#
# TOML is appended to the configuration. It may not hold [server], and holds
# each table once. Sets serve_pid.
serve_pid=''

serve_write_config() {  # FOLDER TOML
  cat >"$1/hoistd.toml" <<TOML
[server]
socket = "$1/hoistd.sock"
grpc_socket = "$1/hoistd.grpc.sock"
socket_mode = "0600"
group = ""
admin_group = ""
$2
TOML
}

serve_start() {
  local hoistd=$1 folder=$2 tries=0
  serve_write_config "$folder" "${3:-}"
  "$hoistd" --config "$folder/hoistd.toml" >"$folder/hoistd.log" 2>&1 </dev/null &
  serve_pid=$!
  until [[ -S $folder/hoistd.sock && -S $folder/hoistd.grpc.sock ]]; do
    tries=$((tries + 1))
    if ! kill -0 "$serve_pid" 2>/dev/null || [[ $tries -gt 300 ]]; then
      echo "hoistd did not start; it said:" >&2
      cat "$folder/hoistd.log" >&2
      return 1
    fi
    sleep 0.1
  done
}

serve_stop() {
  if [[ -z $serve_pid ]]; then return 0; fi
  kill "$serve_pid" 2>/dev/null || true
  wait "$serve_pid" 2>/dev/null || true
  serve_pid=''
}
