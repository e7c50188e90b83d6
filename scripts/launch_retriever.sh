#!/usr/bin/env bash
# Start the retrieval server that training and evaluation ask.
#
#   INDEX=outputs/data/geohop/index PORT=8000 HOST=127.0.0.1 bash scripts/launch_retriever.sh
#
# INDEX is a directory that `tree-grpo index` wrote. Further arguments go to `tree-grpo serve`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh

exec .venv/bin/tree-grpo serve \
    --index "${INDEX:?set INDEX to a directory that tree-grpo index wrote}" \
    --host "${HOST:-127.0.0.1}" \
    --port "${PORT:-8000}" \
    "$@"
