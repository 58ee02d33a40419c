#!/usr/bin/env bash
# The sdist and the wheel of what is committed, and what the wheel does in an environment that has nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} out=${1:-$PWD/dist} commit=$(git rev-parse --short HEAD)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/source"
git archive "$commit" | tar -x -C "$work/source" # so that the commit is written down, and nothing else comes along

"$python" -m venv "$work/build"
"$work/build/bin/python" -m pip install --quiet --disable-pip-version-check build
"$work/build/bin/python" -m build --outdir "$work/dist" "$work/source" > "$work/build.log" || { cat "$work/build.log"; exit 1; }
cp "$work"/dist/* "$out"

"$python" -m venv "$work/bare"
install() { "$work/bare/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
install "$(grep '^torch==' constraints.txt)" # alone: a CPU build is taken where the index has one
install -c constraints.txt "$work"/dist/*.whl
cd "$work"
export PATH="$work/bare/bin:$PATH" HF_HUB_OFFLINE=1 XDG_CACHE_HOME="$work/cache"
isograd --version
isograd --version | grep -qF "$commit" || { echo "package.sh: the wheel does not name commit $commit"; exit 1; }
isograd list > /dev/null
isograd recipes number-words > /dev/null
isograd init-recipe
isograd train embedded.yaml training.steps=4 training.warmup=1 training.valid_every=4 training.batch=2
isograd open runs/embedded
isograd check runs/embedded/model
echo "package: $(ls "$out")"
