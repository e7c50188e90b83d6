#!/usr/bin/env bash
# Makes .venv once; a no-op afterwards. Every other script calls it.
#   bash scripts/setup.sh            CPU training, serving, tests (requirements/cpu.txt)
#   EXTRAS=gpu bash scripts/setup.sh GPU training from pyproject's extras instead
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

EXTRAS="${EXTRAS:-cpu}"
stamp=".venv/.tree-grpo-$EXTRAS-$(cat requirements/cpu.txt pyproject.toml | cksum | cut -d' ' -f1)"
[[ -f "$stamp" ]] && exit 0

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.12 python3.11 python3; do
    [[ -n "$candidate" ]] && command -v "$candidate" >/dev/null || continue
    "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null &&
      { echo "$candidate"; return; }
  done
  echo "setup: no Python 3.11 or 3.12 found; install one, or name it: PYTHON=/path/to/python" >&2
  return 2
}

started=$SECONDS
python="$(find_python)"
echo "setup: making .venv with $("$python" --version) (a few minutes, once)"
[[ -x .venv/bin/python ]] || "$python" -m venv .venv
pip=(.venv/bin/python -m pip --quiet --disable-pip-version-check install)
if [[ "$EXTRAS" == cpu ]]; then
  echo "setup: torch"
  "${pip[@]}" torch==2.13.0
  echo "setup: verl, vLLM and the rest"
  "${pip[@]}" --no-deps -r requirements/cpu.txt
  "${pip[@]}" --no-deps --no-build-isolation --editable .
else
  "${pip[@]}" --editable ".[$EXTRAS,serve,data,plots,dev]"
fi
rm -f .venv/.tree-grpo-"$EXTRAS"-*
touch "$stamp"
echo "setup: done in $((SECONDS - started)) s"
