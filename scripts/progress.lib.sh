# Sourced: long commands that show how far they are.
#
#   progress WHAT LOG COMMAND...  runs COMMAND with its output in the file LOG.
#                                 If it fails, shows the log's end, and fails.
#
# On a terminal WHAT has one line, rewritten; elsewhere a line comes every tenth
# of the way, if that takes seconds, or, where the command does not tell how far
# it is, every minute.
# Understood are ninja's "[3/40] ..." and apt-get's APT::Status-Fd on its stdout.

# Sets `percent`, if the line says how far the command is, and `step`, what it
# is at. False for apt-get's status, which is not for the log.
progress_parse() {  # LINE
  if [[ $1 =~ ^\[([0-9]+)/([0-9]+)\]\ (.*) ]]; then
    percent=$((100 * BASH_REMATCH[1] / BASH_REMATCH[2]))
    step="[${BASH_REMATCH[1]}/${BASH_REMATCH[2]}] ${BASH_REMATCH[3]}"
  elif [[ $1 =~ ^(dl|pm)status:[^:]*:([0-9]+)[^:]*:(.*) ]]; then
    percent=${BASH_REMATCH[2]} step=${BASH_REMATCH[3]}
    return 1
  elif [[ $1 =~ [^[:space:]] ]]; then
    step=$1
  fi
}

progress_show() {  # WHAT: what is due, if anything.
  local after=$((SECONDS - started)) text
  text="$1, $after s: ${percent:+$percent %, }$step"
  if [[ -n $columns ]]; then
    printf '\r\033[K%s' "${text:0:columns-1}"
  elif [[ -n $percent ]]; then
    [[ $((percent / 10)) != "$shown_tenth" && $after -ge $((shown + 5)) ]] ||
      return 0
    shown_tenth=$((percent / 10)) shown=$after
    echo "$text"
  elif [[ $after -ge $((shown + 60)) ]]; then
    shown=$after
    echo "$text"
  fi
}

# Copies stdin to stdout, and shows on fd 3 how far it is.
progress_filter() {  # WHAT
  local started=$SECONDS percent='' step='' line='' part status columns=''
  local shown_tenth=0 shown=0
  if [[ -t 3 ]]; then
    columns=$(stty size <&3 2>/dev/null | cut -d' ' -f2) || true
    [[ ${columns:-0} -gt 1 ]] || columns=80
  fi
  while :; do
    status=0
    IFS= read -r -t 1 part || status=$?
    line+=$part
    if [[ $status == 0 ]]; then
      if progress_parse "$line"; then printf '%s\n' "$line"; fi
      line=''
    elif [[ $status -le 128 ]]; then  # The end; above, a second went by.
      printf '%s' "$line"
      break
    fi
    progress_show "$1" >&3
  done
  if [[ -n $columns ]]; then printf '\r\033[K' >&3; fi
}

progress() {  # WHAT LOG COMMAND...
  local what=$1 log=$2 status=0 started=$SECONDS
  shift 2
  mkdir -p "$(dirname "$log")"
  (
    set -o pipefail
    "$@" </dev/null 2>&1 | progress_filter "$what" 3>&1 >"$log"
  ) || status=$?
  if [[ $status != 0 ]]; then
    tail -n 40 "$log" >&2
    echo "$what failed; all it said is in $log" >&2
    return "$status"
  fi
  echo "$what: done in $((SECONDS - started)) s"
}
