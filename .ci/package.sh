#!/usr/bin/env bash
# The sdist and the wheel of what is committed, the same bytes whenever they are built, and what the wheel does in an
# environment that has nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} out=${1:-$PWD/dist} commit=$(git rev-parse --short HEAD)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
export SOURCE_DATE_EPOCH

"$python" -m venv "$work/build"
"$work/build/bin/python" -m pip install --quiet --disable-pip-version-check build twine
for dist in dist again; do
  mkdir -p "$out" "$work/source-$dist"
  git archive "$commit" | tar -x -C "$work/source-$dist" # so that the commit is written down, and nothing else comes along
  "$work/build/bin/python" -m build --outdir "$work/$dist" "$work/source-$dist" > "$work/build.log" || { cat "$work/build.log"; exit 1; }
  sdist=$(echo "$work/$dist"/*.tar.gz) # setuptools writes the time of day into it, so it is packed once more
  mkdir "$work/open-$dist"
  tar -C "$work/open-$dist" -xzf "$sdist"
  tar -C "$work/open-$dist" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --mode=u+rwX,go+rX,go-w -c "$(ls "$work/open-$dist")" | gzip -n9 > "$sdist"
done
for file in "$work"/dist/*; do
  cmp "$file" "$work/again/$(basename "$file")" || { echo "package.sh: two builds differ"; exit 1; }
done
"$work/build/bin/python" -m twine check --strict "$work"/dist/*
cp "$work"/dist/* "$out"

"$python" -m venv "$work/bare"
install() { "$work/bare/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
install "$(grep '^torch==' constraints.txt)" # alone: a CPU build is taken where the index has one
wheel=$(echo "$work"/dist/*.whl) constraints=$PWD/constraints.txt
install -c "$constraints" "$wheel"
cd "$work"
export PATH="$work/bare/bin:$PATH" HF_HUB_OFFLINE=1 XDG_CACHE_HOME="$work/cache"
isograd --version
isograd --version | grep -qF "$commit" || { echo "package.sh: the wheel does not name commit $commit"; exit 1; }
isograd show > /dev/null
cat > own.py <<'END'
import torch
from torch import nn


class Positions(nn.Embedding):
    def forward(self, x):
        return x + self.weight[: x.shape[1]]


def model():
    layers = [nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(4)]
    return nn.Sequential(nn.Embedding(99, 32), Positions(8, 32), *layers, nn.Linear(32, 99))


def batch():
    return torch.randint(0, 99, (2, 8))
END
isograd check own:model --batch own:batch # with core's packages alone
isograd conform --list > /dev/null || true
! isograd train embedded.yaml 2> refused || { echo "package.sh: trained without its packages"; exit 1; }
grep -qF "pip install 'isograd[lab]'" refused
install -c "$constraints" "$wheel[lab]"
isograd show number-words > /dev/null
isograd train --new
isograd train embedded.yaml training.steps=4 training.warmup=1 training.valid_every=4 training.batch=2
isograd report runs/embedded --open
isograd check runs/embedded/model
"$work/build/bin/python" -m pip install --quiet --disable-pip-version-check pipx
PIPX_HOME=$work/pipx "$work/build/bin/pipx" run --pip-args "-c $constraints" --spec "$wheel" isograd check own:model --batch own:batch
(cd "$out" && sha256sum ./*)
