# Sourced: a folder that travels to a machine without a network, in parts.
#
#   kit_cut FOLDER LEVEL  cuts all of FOLDER/ into FOLDER-kit/1, FOLDER-kit/2, ...
#                         of 48 MiB at most; xz's LEVEL
#   kit_take FOLDER       there: keeps the parts that lie in FOLDER-kit; makes
#                         FOLDER of them once all are there
#
# FOLDER lies in the repository's root, where the caller is. Each part's name says
# how many there are. A part of another kit takes the place of that kit.
kit_part_mib=48

kit_ignore() {  # PATTERN: in this clone alone.
  local exclude
  exclude=$(git rev-parse --git-path info/exclude)
  mkdir -p "$(dirname "$exclude")"
  grep -qxF "$1" "$exclude" 2>/dev/null || echo "$1" >>"$exclude"
}

kit_cut() {  # FOLDER LEVEL
  local part number=0 count kit=$1-kit
  kit_ignore "/$1/"
  kit_ignore "/$kit/"
  rm -rf "$kit"
  mkdir "$kit"
  tar -C "$1" -cf - . | xz -T0 "-$2" |
    split -b "${kit_part_mib}M" -a 2 - "$kit/part." || return
  count=$(find "$kit" -type f | wc -l)
  for part in "$kit"/part.*; do
    number=$((number + 1))
    mkdir "$kit/$number"
    mv "$part" "$kit/$number/$number-of-$count"
  done
  du -m "$kit"/*/*
}

kit_take() {  # FOLDER
  local part count have taken=${TMPDIR:-/tmp}/hoist-kit$1
  mkdir -p "$taken"
  for part in "$1-kit"/*/*-of-*; do
    [[ -f $part ]] || continue
    [[ -e $taken/of-${part##*-of-} ]] || rm -f "$taken"/*
    touch "$taken/of-${part##*-of-}"
    mv "$part" "$taken/"
  done
  count=$(find "$taken" -name 'of-*' -printf '%f' | cut -c4-)
  if [[ -z $count ]]; then return; fi
  have=$(find "$taken" -name '*-of-*' | wc -l)
  echo "$1: $have of $count parts"
  [[ $have == "$count" ]] || return 0
  rm -rf "$1"
  mkdir "$1"
  find "$taken" -name '*-of-*' | sort -V | xargs cat | xz -dc -T0 |
    tar -C "$1" -xf - || return
  rm -rf "$taken"
}
