#!/usr/bin/env bash
# The default suite with other versions than the pinned ones: `versions.sh lower` takes those that pyproject.toml names as
# the least, `versions.sh newest` the newest transformers. Further words go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
which=${1:?lower or newest}
shift
venv=${VENV:-.venv-$which}
case $which in
  lower) constraints=constraints-lower.txt ;;
  newest)
    constraints=$venv.txt
    grep -vE '^(transformers|tokenizers|huggingface_hub|safetensors)==' constraints.txt > "$constraints"
    ;;
  *) echo "versions.sh: expected lower or newest, got $which" >&2 && exit 2 ;;
esac
test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
install "$(grep '^torch==' "$constraints")"
install --upgrade -c "$constraints" transformers
install -c "$constraints" -e ".[dev]"
"$venv/bin/python" -m pytest "$@"
