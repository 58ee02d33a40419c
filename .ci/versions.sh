#!/usr/bin/env bash
# The default suite with other versions than the pinned ones: `versions.sh lower` takes those that pyproject.toml names as
# the least, `versions.sh newest` the newest transformers. Further words go to pytest. TORCH=2.13.0 takes that torch instead
# of the constraints' (2.11.0 is a CUDA build of gigabytes where the index has no CPU build of it), VENV=FOLDER that environment.
set -euo pipefail
cd "$(dirname "$0")/.."
which=${1:?lower or newest}
shift
venv=${VENV:-.venv-$which}
case $which in
  lower) but=torch from=constraints-lower.txt ;;
  newest) but='torch|transformers|tokenizers|huggingface_hub|safetensors' from=constraints.txt ;;
  *) echo "versions.sh: expected lower or newest, got $which" >&2 && exit 2 ;;
esac
constraints=$venv.txt
torch=torch==${TORCH:-$(sed -n 's/^torch==//p' "$from")}
{ grep -vE "^($but)==" "$from"; echo "$torch"; } > "$constraints"
test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
install "$torch"
install --upgrade -c "$constraints" transformers
install -c "$constraints" -e ".[dev]"
"$venv/bin/python" -m pytest "$@"
