#!/usr/bin/env bash
# Every check of the project: lint, types, import contracts, unit, contract and end-to-end tests.
#   bash scripts/test.sh             everything
#   bash scripts/test.sh --fast      all but the end-to-end tests
#   bash scripts/test.sh PATH ...    only these tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

select=()
if [[ "${1:-}" == --fast ]]; then select=(-m "not e2e"); shift; fi
if [[ $# -gt 0 ]]; then exec python -m pytest "${select[@]}" "$@"; fi

step() { echo; echo "== $*"; }
step ruff;           ruff check . && ruff format --check .
step pyright;        pyright
step import-linter;  lint-imports
step pytest;         python -m pytest "${select[@]}"
