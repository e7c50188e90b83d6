#!/usr/bin/env bash
# The chain baseline GSPO on multi-hop QA. Needs a retrieval server (scripts/launch_retriever.sh) and the task's data.
#
#   MODEL=qwen2.5_3b MACHINE=gpu8 BUDGET=4 bash scripts/train_multihopqa_gspo.sh
#   DRY_RUN=1 bash scripts/train_multihopqa_gspo.sh  # show everything, start nothing
#   MACHINE=cpu MODEL=geohop_tiny bash scripts/train_multihopqa_gspo.sh  # in miniature on two cores
#
# Further arguments are hydra overrides and win. docs/recipes.md lists the values.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh

exec .venv/bin/tree-grpo train \
    task=multihop \
    algorithm=gspo \
    model="${MODEL:-qwen2.5_3b}" \
    machine="${MACHINE:-gpu8}" \
    budget="${BUDGET:-4}" \
    "$@"
