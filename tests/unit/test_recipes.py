"""Recipes: every script and group composes, and the composed values are the paper's."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from search_r1.config import TreeConfig
from verl_tree_grpo import checks
from verl_tree_grpo.main import main
from verl_tree_grpo.overrides import explain, normalise
from verl_tree_grpo.recipe import (
    GROUPS,
    compose,
    config_dir,
    derive,
    options,
    resolve_model_path,
    tree_config,
)

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "scripts").glob("train_*.sh"))
PAPER_MODELS = ("qwen2.5_1.5b", "qwen2.5_3b", "qwen2.5_7b", "qwen2.5_14b", "llama3.2_3b")
CHAINS = ("grpo", "gspo")


@functools.cache
def recipe(*overrides: str) -> DictConfig:
    """A derived configuration, composed once however often a test asks; not to be changed."""
    return derive(composed(*overrides))


@functools.cache
def composed(*overrides: str) -> DictConfig:
    """A configuration before its derived values, composed once; not to be changed."""
    return compose(list(overrides))


def choices(script: Path) -> tuple[str, str]:
    """Task and algorithm that a script chooses."""
    text = script.read_text()
    (task,), (algorithm,) = re.findall(r"task=(\w+)", text), re.findall(r"algorithm=(\w+)", text)
    return task, algorithm


@pytest.fixture(autouse=True)
def silent_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No retriever is asked, no dry run is requested by the environment."""
    monkeypatch.setattr(checks, "check_retriever", lambda config, loading_s: [])
    for name in ("DRY_RUN", "VERL_FILE_LOGGER_PATH", "HF_HUB_OFFLINE", "NNODES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RETRIEVER_URL", "http://retriever:8000")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("model", PAPER_MODELS)
def test_every_script_with_every_paper_model_has_the_papers_values(
    script: Path, model: str
) -> None:
    task, algorithm = choices(script)
    config = recipe(f"task={task}", f"algorithm={algorithm}", f"model={model}")
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    web = task == "webagent"
    expected = {
        "data.train_batch_size": 128 if web else 512,
        "data.val_batch_size": 128,
        "data.max_prompt_length": 8000 if web else 4096,
        "tree.max_turn_tokens": 2000 if web else 500,
        "tree.max_observation_tokens": 1000 if web else 500,
        "tree.max_turns": 5 if web else 3,
        "tree.topk": 3,
        "tree.reward": "f1" if web else "em",
        "tree.validation_reward": "f1_only" if web else "em_only",
        "trainer.total_training_steps": 34 if web else 180,
        "trainer.save_freq": 17 if web else 60,
        "trainer.test_freq": 17 if web else 60,
        "trainer.n_gpus_per_node": 8,
        "trainer.v1.trainer_mode": "tree",
        "actor_rollout_ref.actor.ppo_mini_batch_size": 64,
        "actor_rollout_ref.actor.optim.lr": 1e-6,
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": 0.0 if web else 0.285,
        "actor_rollout_ref.actor.use_kl_loss": True,
        "actor_rollout_ref.actor.kl_loss_coef": 0.001,
        "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
        "actor_rollout_ref.actor.entropy_coeff": 0.001,
        "actor_rollout_ref.actor.clip_ratio_c": 3.0,
        "actor_rollout_ref.actor.fsdp_config.param_offload": True,
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload": True,
        "actor_rollout_ref.actor.fsdp_config.dtype": "bfloat16",
        "actor_rollout_ref.model.enable_gradient_checkpointing": True,
        "actor_rollout_ref.rollout.dtype": "bfloat16",
        "actor_rollout_ref.rollout.gpu_memory_utilization": 0.7 if web else 0.6,
        "actor_rollout_ref.rollout.temperature": 1.0,
        "actor_rollout_ref.rollout.top_p": 1.0,
        "actor_rollout_ref.rollout.val_kwargs.temperature": 0,
        "actor_rollout_ref.rollout.val_kwargs.n": 1,
        "algorithm.use_kl_in_reward": False,
    }
    assert {key: OmegaConf.select(config, key) for key in expected} == expected
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (
        (3e-4, 4e-4) if algorithm == "gspo" else (0.2, 0.2)
    )
    if algorithm == "tree_grpo":
        tree = tree_config(config)
        assert (tree.M, tree.N, tree.L, tree.leaves_kept, rollout.n) == (2, 2, 1, 3, 6)
        assert config.algorithm.adv_estimator == "tree"
    else:
        assert (config.tree.M, config.tree.N, config.tree.L, rollout.n) == (4, 0, 0, 4)
        assert config.algorithm.adv_estimator == "grpo"
    assert (actor.policy_loss.loss_mode, actor.loss_agg_mode) == (
        ("gspo", "seq-mean-token-mean") if algorithm == "gspo" else ("vanilla", "token-mean")
    )


def test_the_nine_scripts_are_thin_strict_and_let_the_user_win() -> None:
    assert len({choices(script) for script in SCRIPTS}) == len(SCRIPTS) == 9
    for script in SCRIPTS:
        lines = script.read_text().splitlines()
        assert len(lines) <= 25
        assert "set -euo pipefail" in lines
        assert lines[-1].strip() == '"$@"'


@pytest.mark.parametrize(
    ("budget", "M", "N", "L"), [("2", 1, 2, 1), ("4", 2, 2, 1), ("8", 4, 2, 1), ("16", 4, 5, 1)]
)
def test_a_budget_means_trees_or_as_many_chains(budget: str, M: int, N: int, L: int) -> None:
    tree = recipe(f"budget={budget}").tree
    assert (tree.M, tree.N, tree.L) == (M, N, L)
    for algorithm in CHAINS:
        chains = recipe(f"budget={budget}", f"algorithm={algorithm}")
        assert chains.actor_rollout_ref.rollout.n == chains.tree.M == int(budget)
        assert chains.tree.N == chains.tree.L == 0


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_of_a_group_composes_alone(group: str) -> None:
    for option in options(group):
        assert str(recipe(f"{group}={option}").recipe[group]) == option


def test_every_experiment_composes_and_passes_the_checks() -> None:
    for option in options("experiment"):
        config = recipe("machine=cpu", "model=geohop_tiny", f"+experiment={option}")
        for check in checks.STRUCTURE.values():
            assert list(check(config)) == []


@pytest.mark.parametrize(
    ("model", "task"), itertools.product(("geohop_tiny", "smollm2_135m"), options("task"))
)
def test_the_small_models_compose_with_every_task_and_algorithm_on_a_cpu(
    model: str, task: str
) -> None:
    for algorithm in options("algorithm"):
        names = (f"task={task}", f"algorithm={algorithm}", f"model={model}", "machine=cpu")
        config = recipe(*names)
        for check in checks.STRUCTURE.values():
            assert list(check(config)) == []


@pytest.mark.parametrize(
    "path",
    [path for group in GROUPS for path in sorted((config_dir() / group).glob("*.yaml"))],
    ids=lambda path: path.stem,
)
def test_every_group_file_is_a_small_difference_that_names_its_command(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[0] == "# @package _global_"
    assert f"{path.parent.name}={path.stem}" in lines[1]
    assert len(lines) <= 25 or path.stem == "cpu"


def test_the_tree_group_lists_every_field_of_the_tree_config_with_its_default() -> None:
    shipped = OmegaConf.to_container(OmegaConf.load(config_dir() / "train.yaml").tree)
    assert shipped == dataclasses.asdict(TreeConfig())


def test_derived_values_follow_from_the_tree() -> None:
    config = recipe("tree.M=3", "tree.K=2", "tree.max_turns=1")
    assert config.actor_rollout_ref.rollout.n == config.actor_rollout_ref.actor.rollout_n == 6
    assert config.data.max_response_length == 2 * 500 + 500
    assert config.actor_rollout_ref.rollout.response_length == 1500
    assert config.actor_rollout_ref.rollout.max_model_len == 4096 + 1500
    assert recipe("task=webagent").actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 25000


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("actor_rollout_ref.rollout.n=4", ("rollout.n is 4", "expected 6")),
        ("data.max_response_length=20", ("is 20", "expected 3500", "tree.max_response_tokens")),
        ("actor_rollout_ref.rollout.max_model_len=99", ("is 99", "at least 7596")),
        ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=99", ("is 99", "at least 7596")),
        ("tree.M=two", ("tree.M is 'two'", "expected int")),
        ("tree.K=4", ("tree.K is 4", "1 <= K <= 3")),
        ("+tree.top_k=4", ("unknown key tree.top_k", "did you mean tree.topk?")),
        ("tree=3", ("tree is 3", "expected a group")),
    ],
)
def test_a_contradiction_is_an_error(override: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        derive(compose([override]))
    for word in words:
        assert word in str(caught.value)


def test_an_explicit_value_that_agrees_is_kept() -> None:
    config = recipe("actor_rollout_ref.rollout.n=6", "actor_rollout_ref.rollout.max_model_len=8192")
    assert config.actor_rollout_ref.rollout.n == 6
    assert config.actor_rollout_ref.rollout.max_model_len == 8192


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("tree.max_turn=3", ("unknown key tree.max_turn", "did you mean tree.max_turns?")),
        ("actor_rollout_ref.rollout.nn=2", ("unknown key actor_rollout_ref.rollout.nn",)),
        ("budget=5", ("budget=5", "16, 2, 4, 8")),
        ("model=qwen2.5-3b", ("did you mean model=qwen2.5_3b?",)),
        ("+r.stop=[</search>,</answer>]", ("unquoted", "key=['<a>','<b>']")),
        ("+q.pad=<|endoftext|>", ("unquoted",)),
        ("data.train_files=a,b", ("sweep", "data.train_files=[a,b]")),
        ("--fast", ("--fast", "KEY=VALUE")),
        ("+tree.M=3", ("already", "drop the +")),
    ],
)
def test_what_hydra_refuses_is_said_in_plain_words(override: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        compose([override])
    for word in words:
        assert word in str(caught.value)


def test_quoted_tags_and_lists_of_files_are_read() -> None:
    config = compose(["+r.stop=['</search>','</answer>']", "data.train_files=[a,b]"])
    assert config.r.stop == ["</search>", "</answer>"]
    assert config.data.train_files == ["a", "b"]


def test_a_budget_is_quoted_for_hydra_and_other_numbers_are_not() -> None:
    assert normalise("budget=8", GROUPS) == "budget='8'"
    assert normalise("tree.M=8", GROUPS) == "tree.M=8"
    assert "cannot compose" in explain(ValueError("odd"), ["tree.M=1"], {})


def test_the_demo_model_reads_its_own_task_whatever_task_is_named() -> None:
    config = recipe("task=multihop", "model=geohop_tiny", "machine=cpu")
    assert config.data.train_files == os.path.abspath("outputs/data/geohop/train.parquet")
    assert config.actor_rollout_ref.model.path == str(
        ROOT / "verl" / "verl_tree_grpo" / "demo" / "checkpoint"
    )


def test_rays_arguments_hold_no_interpolations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "3")
    config = derive(compose(["machine=cpu", "model=geohop_tiny"]))
    shown = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=False)
    assert "$" not in str(shown)
    assert shown["runtime_env"]["env_vars"]["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert all(isinstance(v, str) for v in shown["runtime_env"]["env_vars"].values())


def test_a_model_path_in_an_unknown_package_is_an_error() -> None:
    with pytest.raises(ValueError, match="no package 'no_such_package'"):
        resolve_model_path("pkg://no_such_package/x")


def test_metrics_go_beside_the_checkpoints_unless_the_shell_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = "ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH"
    config = derive(compose(["trainer.default_local_dir=/tmp/run/checkpoints"]))
    assert OmegaConf.select(config, key) == "/tmp/run/metrics.jsonl"
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "/tmp/elsewhere.jsonl")
    assert OmegaConf.select(derive(compose([])), key) == "/tmp/elsewhere.jsonl"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("model", PAPER_MODELS)
def test_a_dry_run_of_every_script_and_paper_model_succeeds(
    script: Path, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task, algorithm = choices(script)
    monkeypatch.setenv("DRY_RUN", "1")
    monkeypatch.setattr("verl_tree_grpo.main.compose", lambda overrides: composed(*overrides))
    assert main([f"task={task}", f"algorithm={algorithm}", f"model={model}"]) == 0
    shown = capsys.readouterr().out
    assert "Derived sizes" in shown and "Checks" in shown and "FAILED" not in shown
    rows = (128 if task == "webagent" else 512) * (6 if algorithm == "tree_grpo" else 4)
    assert re.search(rf"rows a step +{rows} ", shown)


def test_a_dry_run_imports_neither_torch_nor_ray() -> None:
    code = (
        "import sys; from verl_tree_grpo.main import main; "
        "code = main(['--dry-run', 'machine=cpu', 'model=geohop_tiny']); "
        "print([m for m in ('torch', 'ray', 'vllm', 'verl') if m in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("script", "machine", "model"),
    [
        ("train_multihopqa_tree_search.sh", "gpu8", "qwen2.5_7b"),
        ("train_webagent_gspo.sh", "cpu", "geohop_tiny"),
    ],
)
def test_a_script_passes_its_environment_and_arguments_on(
    script: str, machine: str, model: str, tmp_path: Path
) -> None:
    """In a copy whose set-up is a no-op and whose ``tree-grpo train`` is this interpreter's."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / script).write_text((ROOT / "scripts" / script).read_text())
    (tmp_path / "scripts" / "setup.sh").write_text("exit 0\n")
    command = tmp_path / ".venv" / "bin" / "tree-grpo"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/bash\nshift\nexec {sys.executable} -m verl_tree_grpo.main "$@"\n')
    command.chmod(0o755)
    environment = {"DRY_RUN": "1", "MACHINE": machine, "MODEL": model, "BUDGET": "8"}
    done = subprocess.run(
        ["bash", str(tmp_path / "scripts" / script), "tree.seed=7"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for line in (f"machine: {machine}", f"model: {model}", "budget: '8'", "seed: 7"):
        assert line in done.stdout


def test_help_lists_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "algorithm={grpo,gspo,tree_grpo}" in capsys.readouterr().out
