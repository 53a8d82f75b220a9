#!/usr/bin/env bash
# Makes build/hoist-<version>-linux-x86_64.tar.gz, which runs from wherever it
# is unpacked, on any x86-64 Linux whose glibc is no older than this machine's.
#
#   scripts/package.sh [--with-tests] [--from BUILD] [--dir DIR]
#                      [--target NAME]...
#   scripts/package.sh --deb [--release N] [--from BUILD] [--dir DIR]
#
#   --deb         Debian packages in place of the archive, in build/deb or DIR:
#                 hoist, libhoist0, libhoist-dev, python3-hoist-client; for the
#                 distribution that builds them, with you as their maintainer:
#                 $DEBFULLNAME and $DEBEMAIL, or CMake's
#                 HOIST_PACKAGE_MAINTAINER
#   --release N   the part of their version behind the dash (1): packages that
#                 are built again need another
#   --with-tests  the test programs, benches and Python tests too, in tests/
#   --from BUILD  package what lies in this build folder, which is taken to be
#                 up to date, in place of building the preset package
#   --dir DIR     leave the unpacked tree in DIR, and make no archive
#   --target NAME build this target alone, and package what there is: for one
#                 test on another machine
#
# Shared libraries come along in lib/hoist, all but glibc's and the driver's.
# libhoist has lib/ for itself: it lives in somebody else's process, and must use
# that process's libstdc++. So it has no search path of its own, and a link with
# -L lib finds no other library there.
#
# share/hoist/built-from names the sources (see scripts/sources.lib.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/sources.lib.sh

with_tests=0 from='' dir='' targets=() deb=0 release=1
while [[ $# -gt 0 ]]; do
  case $1 in
    --with-tests) with_tests=1 ;;
    --deb) deb=1 ;;
    --release) release=${2:?--release needs a number}; shift ;;
    --from) from=${2:?--from needs a build folder}; shift ;;
    --dir) dir=${2:?--dir needs a folder}; shift ;;
    --target) targets+=("${2:?--target needs a name}"); shift ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "unknown option $1; see scripts/package.sh --help" >&2; exit 2 ;;
  esac
  shift
done

version=$(sed -n 's/^project(hoist VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name=hoist-$version-linux-x86_64
limit_mib=60
tree=${from:-build/package}
bytes_of() { stat -c %s "$1"; }
say() { echo "package: $*"; }
die() { echo "package: $*" >&2; exit 1; }

# Not bundled: glibc, whose parts must match the host's loader, and the driver.
host_libs='^(ld-linux-x86-64|libc|libm|libpthread|libdl|librt|libresolv|libutil'
host_libs+='|libanl|libnss_[a-z]+|libcuda|libnvidia-[a-z]+)\.so'

build_tree() {
  cmake --preset package -DHOIST_BUILD_TESTS="$1" >"$tree.log" 2>&1 ||
    { cat "$tree.log" >&2; die "configuring failed"; }
  cmake --build --preset package -j "$(nproc)" \
    ${targets:+--target "${targets[@]}"} -- --quiet
}

is_program() {
  [[ -f $1 && -x $1 && ! -L $1 ]] && [[ $(head -c 4 "$1") == $'\x7fELF' ]]
}

take_program() {  # FILE FOLDER RPATH
  install -D -m 755 "$1" "$2/$(basename "$1")"
  strip "$2/$(basename "$1")"
  patchelf --set-rpath "$3" "$2/$(basename "$1")"
}

take_programs() {
  local file
  for file in "$tree"/daemon/hoistd "$tree"/daemon/keeper/hoist-keeper \
    "$tree"/client/ctl/hoistctl "$tree"/client/examples/*; do
    if is_program "$file"; then
      take_program "$file" "$out/bin" "\$ORIGIN/../lib/hoist:\$ORIGIN/../lib"
    fi
  done
}

# libhoist with what others find it by, and the Python package.
take_libhoist() {
  local library=$tree/client/libhoist.so part
  if [[ ! -e $library && -n ${targets[*]} ]]; then return; fi
  for part in client dev; do install_part "$part"; done
  [[ -e $out/lib/libhoist.so ]] ||
    die "$tree installs libhoist elsewhere than in lib: CMAKE_INSTALL_LIBDIR"
  strip --strip-unneeded "$(realpath "$out/lib/libhoist.so")"
  cp -r client/python/hoist "$out/python/"
  find "$out/python" -name __pycache__ -prune -exec rm -rf {} +
  # By its soname, which is what the package looks for.
  cp -L "$out"/lib/libhoist.so.? "$out/python/hoist/"
  local fast=$tree/client/_fast.abi3.so
  if [[ -e $fast ]]; then strip -o "$out/python/hoist/${fast##*/}" "$fast"; fi
  cp client/python/{README.md,pyproject.toml,build_wheel.py} "$out/python/"
}

install_part() {  # COMPONENT
  cmake --install "$tree" --prefix "$out" --component "$1" >"$work/install" ||
    { cat "$work/install" >&2; die "cannot install $1 of $tree"; }
}

take_texts() {
  mkdir -p "$out/share/hoist" "$out/python"
  cp -r deploy/. "$out/share/hoist/"
  # What makes packages and the manual.
  (cd "$out/share/hoist" && rm -r CMakeLists.txt packages.cmake debian man)
  cp -r proto/hoist "$out/share/hoist/proto-hoist"
  # For languages that build messages at run time.
  protoc -Iproto --include_imports \
    --descriptor_set_out="$out/share/hoist/hoist_v1.pb" \
    hoist/v1/worker.proto hoist/v1/admin.proto hoist/v1/session.proto
  if [[ -d client/examples ]]; then
    cp -r client/examples "$out/share/hoist/examples"
    find "$out/share" -name __pycache__ -prune -exec rm -rf {} +
  fi
  echo "$built_from" >"$out/share/hoist/built-from"
  cp LICENSE "$out/"
  local file
  for file in README.md CHANGELOG.md; do
    if [[ -f $file ]]; then cp "$file" "$out/"; fi
  done
}

take_tests() {
  local file kind
  while read -r file; do
    is_program "$file" || continue
    kind=${file#"$tree/tests/"}
    take_program "$file" "$out/tests/${kind%%/*}" \
      "\$ORIGIN/../../lib/hoist:\$ORIGIN/../../lib"
  done < <(find "$tree/tests" -type f -perm -u+x ! -path '*/CMakeFiles/*' \
    ! -path '*/component/libtorch/*' ! -path '*/install/*')  # Tests made these.
  while read -r file; do
    install -D -m 644 "$file" "$out/tests/python/$file"
  done < <(find client/python/tests tests -name '*.py' ! -path 'tests/tidy/*'
    # What test_guide.py runs.
    ls README.md client/python/README.md)
  find "$out/tests" -name __pycache__ -prune -exec rm -rf {} +
}

# Every library that the programs need, theirs in turn included (ldd follows).
take_libraries() {
  local lib
  mapfile -t libs < <(
    { find "$out/bin" "$out/tests" -type f -perm -u+x 2>/dev/null || true; } |
      while read -r file; do is_program "$file" && echo "$file"; done |
      LD_LIBRARY_PATH=$out/lib xargs ldd 2>/dev/null |
      awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u)
  for lib in "${libs[@]}"; do
    [[ $(basename "$lib") =~ $host_libs || $lib == "$out"/* ]] && continue
    install -D -m 644 "$lib" "$out/lib/hoist/$(basename "$lib")"
    strip --strip-unneeded "$out/lib/hoist/$(basename "$lib")"
    patchelf --set-rpath "\$ORIGIN" "$out/lib/hoist/$(basename "$lib")"
    take_license "$lib"
  done
}

take_license() {  # LIBRARY: the terms it is passed on under.
  local file package
  file=$(realpath "$1")  # dpkg may know it under the /lib of old.
  package=$(dpkg-query -S "$file" "${file#/usr}" 2>/dev/null | head -1 |
    cut -d: -f1) || true
  if [[ -n $package && -f /usr/share/doc/$package/copyright ]]; then
    install -D -m 644 "/usr/share/doc/$package/copyright" \
      "$out/share/doc/hoist/licenses/$package"
  else
    say "no copyright file found for $1"
  fi
}

take_manual() {
  if [[ -n ${targets[*]} ]]; then return; fi
  install_part man
  install_part completions
}

# Into $out; CPack stages in a folder of its own.
make_debs() {
  rm -f "$out"/*.deb
  cpack --config "$tree/CPackConfig.cmake" -B "$work" \
    -D "CPACK_DEBIAN_PACKAGE_RELEASE=$release" >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; die "CPack failed"; }
  mv "$work"/*.deb "$out/"
  (cd "$out" && ls -- *.deb) | while read -r deb; do say "$out/$deb"; done
}

# Runs what was packed, from another place and with nothing in the environment.
smoke_test() {
  local program foreign
  for program in "$out"/bin/* "$out"/tests/*/*; do
    is_program "$program" || continue
    foreign=$(env -i ldd "$program" | awk '$2 == "=>" {print $1, $3}' |
      grep -vE "$host_libs" | grep -v " $out/" || true)
    [[ -z $foreign ]] || die "$program uses what the package lacks: $foreign"
  done
  if [[ -n ${targets[*]} ]]; then return; fi
  env -i "$out/bin/hoistd" --version
  env -i "$out/bin/hoist-keeper" --version
  env -i "$out/bin/hoistctl" version
}

[[ -z $from || -z ${targets[*]} ]] ||
  die "--from builds nothing, so it takes no --target"
# Before building: what is edited meanwhile then differs from it.
built_from=$(sources_digest)
mkdir -p build
if [[ -n $from ]]; then
  is_program "$tree/daemon/hoistd" && is_program "$tree/client/ctl/hoistctl" ||
    die "$from has no daemon/hoistd and client/ctl/hoistctl; build it first"
else
  say "building (preset package)"
  build_tree "$([[ $with_tests == 1 ]] && echo ON || echo OFF)"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ $deb == 1 ]]; then dir=${dir:-build/deb}; fi
if [[ -n $dir ]]; then
  mkdir -p "$dir"
  out=$(realpath "$dir")
else
  out=$work/$name
  mkdir "$out"
fi
if [[ $deb == 1 ]]; then
  make_debs
  exit 0
fi
rm -rf "${out:?}"/*
take_texts
take_libhoist
take_programs
if [[ $with_tests == 1 ]]; then take_tests; fi
take_libraries
take_manual
smoke_test
if [[ -n $dir ]]; then
  say "$dir: $(du -sh "$out" | cut -f1)"
  exit 0
fi
tar -C "$work" --owner=0 --group=0 -czf "build/$name.tar.gz" "$name"
size=$(bytes_of "build/$name.tar.gz")
[[ $size -lt $((limit_mib << 20)) ]] ||
  die "build/$name.tar.gz is $size bytes, over $limit_mib MiB"
say "build/$name.tar.gz: $((size >> 10)) KiB"
