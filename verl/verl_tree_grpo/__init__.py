"""Tree-GRPO for upstream verl: what verl loads from the ``verl.plugins`` entry point.

Loading it changes nothing on a GPU machine. With ``VERL_PLATFORM=cpu`` it registers the CPU
platform. Trainer, estimators and rollout worker are registered by the process that uses them
(:mod:`verl_tree_grpo.run`), so that no other process pays for their imports.

verl logs a plugin that fails to load at DEBUG only, so this module logs its own failure at ERROR.
"""

from __future__ import annotations

import logging
import os

if os.environ.get("VERL_PLATFORM") == "cpu":
    try:
        from verl_tree_grpo import platform_cpu

        platform_cpu.register()
    except Exception:
        logging.getLogger(__name__).exception(
            "verl_tree_grpo could not register the CPU platform; run `tree-grpo doctor`"
        )
        raise
