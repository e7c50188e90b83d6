"""From a handful of choices to verl's whole configuration: ``compose``, then ``derive``.

``compose`` puts the groups of ``configs/`` on top of verl's own trainer configuration. ``derive``
fills in what follows from the other values (rows per prompt, context lengths, batch pieces, paths),
so that nobody types it, and refuses an explicit value that contradicts the rest.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from search_r1.config import TreeConfig
from verl_tree_grpo.overrides import explain, normalise

GROUPS = ("task", "model", "budget", "algorithm", "retrieval", "machine")
PATH_KEYS = ("data.train_files", "data.val_files", "trainer.default_local_dir", "tree.record")
DYNAMIC_TOKENS = 16384
"""verl's own default for the tokens of one dynamic micro-batch; longer rows raise it."""
MAX_MICRO_BATCH = 8
"""Rows of one fixed micro-batch, at most."""


def config_dir() -> Path:
    """The directory of ``train.yaml``: ``configs/`` of a checkout, or the copy in the wheel."""
    here = Path(__file__).resolve().parent
    for candidate in (here.parents[1] / "configs", here / "_configs"):
        if (candidate / "train.yaml").is_file():
            return candidate
    raise FileNotFoundError(
        f"no configs/train.yaml in {here.parents[1]} and no _configs/ in {here}; "
        "reinstall tree-grpo, or run from a checkout"
    )


def upstream_config_dir() -> Path:
    """verl's ``trainer/config``, found without importing verl (which imports torch)."""
    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        raise ValueError(
            "upstream verl is not installed: got "
            f"{'nothing' if spec is None else 'only the source root ' + str(spec.name)!r}, "
            "expected verl 0.9.1; run `bash scripts/setup.sh`"
        )
    return Path(spec.origin).parent / "trainer" / "config"


def options(group: str) -> list[str]:
    """The option names of one of our groups, as on the command line (``model=NAME``)."""
    return sorted(path.stem for path in (config_dir() / group).glob("*.yaml"))


def compose(overrides: list[str]) -> DictConfig:
    """verl's trainer configuration with the chosen groups and ``a.b=c`` overrides on top.

    Raises ValueError, in plain words, for anything hydra does not accept. Call :func:`derive` next.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException

    arguments = [normalise(text, GROUPS) for text in overrides]
    # The searchpath of train.yaml imports verl to find its files; the same place as a plain path.
    arguments.append(f"hydra.searchpath=['file://{upstream_config_dir()}']")
    try:
        with initialize_config_dir(config_dir=str(config_dir()), version_base="1.3"):
            config = hydra_compose("train", overrides=arguments, return_hydra_config=True)
    except HydraException as error:
        raise ValueError(explain(error, overrides, {g: options(g) for g in GROUPS})) from error
    choices = config.hydra.runtime.choices
    with open_dict(config):
        for group in GROUPS:
            config.recipe[group] = choices[group]
        del config["hydra"]
    if not OmegaConf.is_dict(config.tree):
        raise ValueError(f"tree is {config.tree!r}, expected a group of keys; set tree.KEY=VALUE")
    return config


def tree_config(config: DictConfig) -> TreeConfig:
    """The ``tree:`` group as a :class:`TreeConfig`.

    Raises ValueError, one line a fault, for unknown keys, wrong types and impossible values.
    """
    values = OmegaConf.to_container(config.tree, resolve=True)
    assert isinstance(values, dict)
    hints = typing.get_type_hints(TreeConfig)
    problems: list[str] = []
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(str(name), hints, n=1)
            hint = f"did you mean tree.{near[0]}? " if near else ""
            problems.append(f"unknown key tree.{name}; {hint}expected one of: {', '.join(hints)}")
        elif not _is(value, hints[name]):
            expected = getattr(hints[name], "__name__", None) or str(hints[name])
            problems.append(f"tree.{name} is {value!r}, expected {expected}; correct its value")
    if problems:
        raise ValueError("\n".join(problems))
    return TreeConfig.from_mapping({str(k): v for k, v in values.items()})


def _is(value: object, hint: Any) -> bool:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (isinstance(value, int) and float in kinds)


def derive(config: DictConfig) -> DictConfig:
    """A copy of ``config`` with every derived value filled in.

    A derived value is null until here. Raises ValueError, naming all contradictions at once, where
    an explicit one disagrees with the values it follows from.
    """
    config = config.copy()
    tree, actor = tree_config(config), config.actor_rollout_ref.actor
    length = config.data.max_prompt_length + tree.response_tokens
    problems = [
        *_exact(config, "actor_rollout_ref.rollout.n", tree.leaves_per_prompt, "M*K of the tree"),
        *_exact(
            config,
            "data.max_response_length",
            tree.response_tokens,
            "the longest branch, or tree.max_response_tokens where that is set",
        ),
        *_at_least(config, "actor_rollout_ref.rollout.max_model_len", length),
    ]
    if actor.use_dynamic_bsz:
        key = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
        problems += _at_least(config, key, length, default=max(length, DYNAMIC_TOKENS))
    if problems:
        raise ValueError("\n".join(problems))
    if not actor.use_dynamic_bsz:
        actor.ppo_max_token_len_per_gpu = actor.ppo_max_token_len_per_gpu or DYNAMIC_TOKENS
        _derive_micro_batches(config)
    _derive_paths(config)
    return config


def _exact(config: DictConfig, key: str, value: int, why: str) -> Iterator[str]:
    got = OmegaConf.select(config, key)
    if got is not None and got != value:
        yield f"{key} is {got}, expected {value} ({why}); leave it unset, or change what it follows"
    OmegaConf.update(config, key, value)


def _at_least(
    config: DictConfig, key: str, minimum: int, default: int | None = None
) -> Iterator[str]:
    got = OmegaConf.select(config, key)
    if got is None:
        OmegaConf.update(config, key, default or minimum)
    elif got < minimum:
        yield (
            f"{key} is {got}, expected at least {minimum} (data.max_prompt_length + "
            "data.max_response_length); leave it unset, or shorten prompt, turns or observations"
        )


def world_size(config: DictConfig) -> int:
    """Devices of the run."""
    return config.trainer.nnodes * config.trainer.n_gpus_per_node


def data_parallel_size(config: DictConfig) -> int:
    """Ranks that see different rows: devices over the sequence-parallel size."""
    return world_size(config) // config.actor_rollout_ref.actor.ulysses_sequence_parallel_size


def _derive_micro_batches(config: DictConfig) -> None:
    """Without dynamic batches: the largest piece, at most ``MAX_MICRO_BATCH``."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    rows = actor.ppo_mini_batch_size * rollout.n // max(1, data_parallel_size(config))
    sizes = (n for n in range(min(MAX_MICRO_BATCH, max(rows, 1)), 0, -1) if rows % n == 0)
    if actor.ppo_micro_batch_size_per_gpu is None:
        actor.ppo_micro_batch_size_per_gpu = next(sizes)
    for section in (rollout, config.actor_rollout_ref.ref):
        if section.log_prob_micro_batch_size_per_gpu is None:
            section.log_prob_micro_batch_size_per_gpu = actor.ppo_micro_batch_size_per_gpu


def _derive_paths(config: DictConfig) -> None:
    """Absolute paths, since Ray's processes need not share the working directory."""
    for key in PATH_KEYS:
        value = OmegaConf.select(config, key)
        if value is not None:
            many = OmegaConf.is_list(value)
            paths = [os.path.abspath(os.path.expanduser(path)) for path in _each(value)]
            OmegaConf.update(config, key, paths if many else paths[0])
    model = config.actor_rollout_ref.model
    model.path = resolve_model_path(model.path)
    OmegaConf.resolve(config.ray_kwargs)  # verl hands ray.init the interpolations as they stand
    env = config.ray_kwargs.ray_init.runtime_env.env_vars
    run_dir = Path(config.trainer.default_local_dir).parent
    with open_dict(env):
        env.setdefault(
            "VERL_FILE_LOGGER_PATH",
            os.environ.get("VERL_FILE_LOGGER_PATH", str(run_dir / "metrics.jsonl")),
        )


def _each(value: Any) -> Iterator[str]:
    yield from (value if OmegaConf.is_list(value) else [value])


def is_local_path(path: str) -> bool:
    """Whether a model path means a directory here rather than a hub id ``owner/name``."""
    return path.startswith((".", "/", "~")) or path.count("/") != 1 or os.path.isdir(path)


def resolve_model_path(path: str) -> str:
    """``pkg://package/dir`` and local paths become absolute directories; a hub id stays.

    >>> resolve_model_path("Qwen/Qwen2.5-3B")
    'Qwen/Qwen2.5-3B'
    """
    if path.startswith("pkg://"):
        package, _, inside = path.removeprefix("pkg://").partition("/")
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(
                f"actor_rollout_ref.model.path is {path!r}, but there is no package {package!r}; "
                "expected pkg://PACKAGE/DIRECTORY, a directory or a hub id"
            )
        return str(Path(next(iter(spec.submodule_search_locations))) / inside)
    if is_local_path(path):
        return os.path.abspath(os.path.expanduser(path))
    return path
