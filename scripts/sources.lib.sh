# Sourced: which sources a build is of, so that one made earlier can be used
# again. Needs no git, so that it works in an unpacked tarball too.
#
#   sources_digest [ROOT]  prints a sha256, in hexadecimal, over the names and
#                          contents of all files that hoistd, hoistctl, libhoist
#                          and the Python package are made from; of this tree
#                          unless told otherwise
#
# scripts/package.sh writes it to share/hoist/built-from.
sources_digest() (
  set -o pipefail
  cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}" || return
  # One order everywhere, and nothing that merely running Python leaves behind.
  digest=$(find CMakeLists.txt cmake proto shared daemon client -type f \
    ! -path '*/__pycache__/*' ! -path '*/.*/*' ! -name '*.pyc' -print0 |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum) || return
  echo "${digest%% *}"
)
