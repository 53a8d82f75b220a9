#!/usr/bin/env bash
# other_commit.sh BUILD PYTHON [COMMIT]
#
# Builds hoistd and libhoist of another commit, in a worktree of its own below
# BUILD. It has workers of either go on from the one build to the other and
# back. COMMIT: "earlier" is the newest one before this tree's in which daemon's
# code differs, and not its documents alone. Exits with 77, and says why, where
# it cannot run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
build=$(realpath "$1")
python=$2
wanted=${3:-earlier}

skip() { echo "skipped: $*"; exit 77; }
git -C "$root" rev-parse --git-dir >/dev/null 2>&1 ||
  skip "there is no git history here"
if [[ $wanted == earlier ]]; then
  # What the working tree has, committed or not, is "this one".
  for commit in $(git -C "$root" rev-list --first-parent -n 200 HEAD); do
    if ! git -C "$root" diff --quiet "$commit" -- 'daemon/*.cc' 'daemon/*.h'; then
      wanted=$commit
      break
    fi
  done
  [[ $wanted != earlier ]] || skip "no earlier commit differs in daemon/"
fi
commit=$(git -C "$root" rev-parse --verify --quiet "$wanted^{commit}") ||
  skip "the git history here has no $wanted"
git -C "$root" diff --quiet "$commit" -- daemon shared client proto &&
  skip "$wanted differs in nothing that is built: a copy proves nothing"
[[ -n $(git -C "$root" ls-tree "$commit" daemon/keeper/) ]] ||
  skip "$wanted keeps no book"

source=$build/other/$commit
cleanup() { git -C "$root" worktree remove --force "$source" || true; }
trap cleanup EXIT
git -C "$root" worktree prune
if [[ ! -e $source ]]; then
  mkdir -p "$build/other"
  git -C "$root" worktree add --quiet --detach "$source" "$commit"
fi
echo "other: $(git -C "$source" log -1 --format='%h %s')"
# Both trees' objects are told apart by what is in them alone.
export CCACHE_BASEDIR=$source CCACHE_NOHASHDIR=1
cmake -S "$source" -B "$source/build/other" -G Ninja \
  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DHOIST_BUILD_TESTS=OFF >/dev/null
cmake --build "$source/build/other" --target hoistd hoist_client \
  --parallel "$(nproc)" >"$build/other/log" 2>&1 ||
  { tail -20 "$build/other/log"; exit 1; }
"$python" "$here/upgrade_test.py" "$build" \
  --other "$source/build/other" "$source" -v
