"""What our configuration sets exists in verl 0.9.1, and verl's dataclasses accept it."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from verl.utils.config import omega_conf_to_dataclass

from verl_tree_grpo.overrides import keys_of
from verl_tree_grpo.recipe import compose, config_dir, derive, upstream_config_dir

OURS = ("recipe", "tree", "hydra", "defaults")
UNLISTED = {
    # Fields of verl's dataclasses, or arguments of ray.init, that its YAML files leave out.
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
    "actor_rollout_ref.rollout.enable_sleep_mode",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.block_size",
    "actor_rollout_ref.model.override_config.attn_implementation",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "ray_kwargs.ray_init.address",
    "ray_kwargs.ray_init.num_gpus",
    "ray_kwargs.ray_init.include_dashboard",
    "ray_kwargs.ray_init.runtime_env.env_vars",
}


@functools.lru_cache(maxsize=1)
def upstream() -> DictConfig:
    """verl's own configuration, without ours."""
    with initialize_config_dir(config_dir=str(upstream_config_dir()), version_base="1.3"):
        return hydra_compose("ppo_trainer")


@functools.cache
def recipe(*overrides: str) -> DictConfig:
    """A derived configuration of ours."""
    return derive(compose(list(overrides)))


CPU = ("machine=cpu", "model=geohop_tiny")
GPU8 = ("machine=gpu8", "model=qwen2.5_3b", "algorithm=gspo")


@pytest.mark.parametrize(
    "path", sorted(config_dir().glob("**/*.yaml")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_every_key_we_set_is_one_that_verl_lists_or_a_known_exception(path: Path) -> None:
    ours = OmegaConf.create(yaml.safe_load(path.read_text()))
    known = set(keys_of(upstream())) | UNLISTED
    for key in keys_of(ours):
        if key.split(".")[0] in OURS or any(key.startswith(f"{u}.") for u in UNLISTED):
            continue
        assert key in known, f"{path.name} sets {key}, which verl 0.9.1 does not know"


def test_no_exception_is_listed_needlessly() -> None:
    known = set(keys_of(upstream()))
    assert UNLISTED.isdisjoint(known)


@pytest.mark.parametrize("overrides", [CPU, GPU8], ids=["cpu", "gpu8"])
def test_verls_dataclasses_accept_the_rollout_actor_and_reference(
    overrides: tuple[str, ...],
) -> None:
    config = recipe(*overrides)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert rollout.n == config.tree.M * (1 + config.tree.L * config.tree.N)
    assert rollout.response_length == config.data.max_response_length
    assert rollout.agent.agent_loop_manager_class == "verl_tree_grpo.worker.TreeAgentLoopManager"
    assert rollout.val_kwargs.temperature == 0 and rollout.val_kwargs.n == 1
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    actor.validate(8, config.data.train_batch_size, config.actor_rollout_ref.model)
    assert actor.strategy == actor.engine.strategy == "fsdp2"
    assert actor.rollout_n == rollout.n
    omega_conf_to_dataclass(config.actor_rollout_ref.ref.fsdp_config)
    omega_conf_to_dataclass(config.algorithm)


def test_the_cpu_recipe_computes_in_float32_throughout() -> None:
    config = recipe(*CPU)
    for part in ("actor", "ref"):
        engine = omega_conf_to_dataclass(config.actor_rollout_ref[part].fsdp_config)
        assert engine.mixed_precision["param_dtype"] == engine.model_dtype == "fp32"
    assert config.actor_rollout_ref.rollout.dtype == "float32"


def test_verls_dataclass_accepts_the_model(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoConfig, PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"[UNK]": 0, "</s>": 1}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>").save_pretrained(tmp_path)
    AutoConfig.for_model("qwen2", architectures=["Qwen2ForCausalLM"], vocab_size=2).save_pretrained(
        tmp_path
    )
    config = derive(compose([*CPU, f"actor_rollout_ref.model.path={tmp_path}"]))
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    assert model.local_path == os.path.abspath(tmp_path)


def test_plain_hydra_finds_the_same_files_through_the_searchpath() -> None:
    with initialize_config_dir(config_dir=str(config_dir()), version_base="1.3"):
        plain = hydra_compose("train", overrides=["tree.M=3"])
    ours = compose(["tree.M=3"])
    for part in set(ours) - {"recipe"}:
        both = [
            OmegaConf.to_container(c[part]) if OmegaConf.is_dict(c[part]) else c[part]
            for c in (plain, ours)
        ]
        assert both[0] == both[1]


def test_the_file_logger_still_reads_its_path_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.utils.tracking import FileLogger

    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    logger = FileLogger("project", "experiment")
    logger.log({"reward": 1.0}, step=1)
    logger.finish()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step":1,"data":{"reward":1.0}}\n'
