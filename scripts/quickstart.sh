#!/usr/bin/env bash
# Tree-GRPO end to end on this machine: set-up, data, index, server, training, report.
#   bash scripts/quickstart.sh                     the demo policy, minutes on two cores
#   bash scripts/quickstart.sh tree.seed=2         hydra overrides go to the trainer
#   MODEL=smollm2 bash scripts/quickstart.sh       SmolLM2-135M-Instruct, for those with more time
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
started=$SECONDS
bash scripts/setup.sh
QUICKSTART_SETUP_S=$((SECONDS - started)) exec .venv/bin/python -m verl_tree_grpo.demo.quickstart "$@"
