"""What is verified before anything heavy starts.

A check is a function from the configuration to messages, none where all is well; each says what,
got, expected and what to do. ``STRUCTURE`` concerns the configuration alone, ``FILES`` the content
of files that are there, ``SURROUNDINGS`` what has to be there: a dry run only warns about the last.
All failures are collected, so that one run shows them all.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf
from search_r1.credit import ESTIMATORS
from search_r1.expansion import EXPANDERS
from search_r1.rewards import REWARDS

from verl_tree_grpo import check_files
from verl_tree_grpo.recipe import data_parallel_size, derive, tree_config, world_size

Check = Callable[[DictConfig], Iterable[str]]
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check: its messages, and whether they forbid a run."""

    check: str
    messages: tuple[str, ...]
    fatal: bool = True

    @property
    def failed(self) -> bool:
        """Whether this finding forbids the run."""
        return self.fatal and bool(self.messages)


def inspect(config: DictConfig, *, dry_run: bool = False) -> tuple[DictConfig, list[Finding]]:
    """Run every check on a composed configuration.

    Returns the configuration with its derived values (as it came, where they could not be derived;
    the checks that need them are then left out), and one finding a check.
    """
    findings = [_run("names", check_names, config)]
    try:
        config, contradictions = derive(config), ()
    except ValueError as error:
        contradictions = tuple(str(error).splitlines())
    findings.append(Finding("derived values", contradictions))
    if not contradictions:
        findings += [_run(name, check, config) for name, check in (STRUCTURE | FILES).items()]
    for name, check in SURROUNDINGS.items():
        findings.append(_run(name, check, config, fatal=not dry_run))
    return config, findings


def _run(name: str, check: Check, config: DictConfig, *, fatal: bool = True) -> Finding:
    return Finding(name, tuple(check(config)), fatal)


def check_names(config: DictConfig) -> Iterator[str]:
    """Estimator, expansion policy and rewards are registered; the trainer is ours."""
    tables = {
        "algorithm.adv_estimator": ESTIMATORS,
        "tree.expansion": EXPANDERS,
        "tree.reward": REWARDS,
        "tree.validation_reward": REWARDS,
    }
    for key, table in tables.items():
        got = OmegaConf.select(config, key)
        if got is not None and got not in table:
            near = difflib.get_close_matches(str(got), table, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            yield f"{key} is {got!r}; {hint}expected one of: {', '.join(table)}; choose one of them"
    if config.trainer.v1.trainer_mode != "tree":
        yield (
            f"trainer.v1.trainer_mode is {config.trainer.v1.trainer_mode!r}, expected 'tree': "
            "other trainers do not hand the tree ids to the estimator; leave it unset"
        )


def check_groups(config: DictConfig) -> Iterator[str]:
    """Some group has two members; in a group of one every advantage is 0."""
    tree = tree_config(config)
    if tree.leaves_per_prompt == 1:
        yield (
            "a prompt has 1 leaf (tree.M=1, one leaf a tree), so every advantage would be 0; "
            "expected at least 2 leaves a prompt; raise tree.M or tree.N"
        )
    elif config.algorithm.adv_estimator == "intra" and tree.leaves_kept == 1:
        yield (
            "algorithm.adv_estimator is 'intra', but a tree returns 1 leaf, so every advantage "
            "would be 0; expected at least 2 leaves a tree; raise tree.N, tree.L or tree.K"
        )


def check_batches(config: DictConfig) -> Iterator[str]:
    """Prompts divide into mini-batches, rows into ranks, rows of a rank into micro-batches."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    prompts, mini = config.data.train_batch_size, actor.ppo_mini_batch_size
    if mini < 1 or prompts < 1 or prompts % mini:
        yield (
            f"data.train_batch_size is {prompts} prompts, expected a multiple of actor."
            f"ppo_mini_batch_size = {mini} prompts; change actor_rollout_ref.actor."
            "ppo_mini_batch_size or data.train_batch_size"
        )
        return
    ranks = data_parallel_size(config)
    if ranks < 1 or mini * rollout.n % ranks:
        yield (
            f"a mini-batch has {mini} prompts * {rollout.n} leaves = {mini * rollout.n} rows, "
            f"expected a multiple of the {ranks} data-parallel ranks; change "
            "actor_rollout_ref.actor.ppo_mini_batch_size or the tree"
        )
    elif not actor.use_dynamic_bsz and mini * rollout.n // ranks % actor.ppo_micro_batch_size_per_gpu:
        yield (
            f"actor.ppo_micro_batch_size_per_gpu is {actor.ppo_micro_batch_size_per_gpu}, expected "
            f"a divisor of the {mini * rollout.n // ranks} rows a rank has of a mini-batch; "
            "leave it unset"
        )


def check_devices(config: DictConfig) -> Iterator[str]:
    """Devices divide into engines and sequence-parallel groups; other nodes reach the retriever."""
    devices = world_size(config)
    for key in ("rollout.tensor_model_parallel_size", "actor.ulysses_sequence_parallel_size"):
        size = OmegaConf.select(config.actor_rollout_ref, key)
        if devices % size:
            yield (
                f"actor_rollout_ref.{key} is {size}, expected a divisor of the {devices} devices "
                "(trainer.nnodes * trainer.n_gpus_per_node); change one of them"
            )
    if config.trainer.nnodes > 1 and urlsplit(config.tree.retriever_url).hostname in LOOPBACK:
        yield (
            f"tree.retriever_url is {config.tree.retriever_url}, which only this machine reaches, "
            f"expected an address all {config.trainer.nnodes} nodes reach; set retrieval=remote "
            "and RETRIEVER_URL=http://HOST:PORT"
        )


def check_retriever(config: DictConfig) -> Iterator[str]:
    """The retrieval server answers."""
    from search_r1.retrieval import probe

    url = str(config.tree.retriever_url)
    try:
        probe(url, timeout_s=PROBE_TIMEOUT_S)
    except Exception as error:  # whatever the boundary says, it goes into the message
        yield (
            f"no retrieval server answers at tree.retriever_url = {url} ({error}); expected one "
            f"that answers GET /healthz; start it with "
            f"`INDEX=DIRECTORY PORT={urlsplit(url).port or 80} bash scripts/launch_retriever.sh`, "
            "or set tree.retriever_url"
        )


STRUCTURE: dict[str, Check] = {
    "groups": check_groups,
    "batches": check_batches,
    "devices": check_devices,
}

FILES: dict[str, Check] = {
    "context length": check_files.check_context,
    "tokenizer": check_files.check_tokenizer,
    "data rows": check_files.check_rows,
    "prompt lengths": check_files.check_prompt_lengths,
    "number of steps": check_files.check_steps,
}

SURROUNDINGS: dict[str, Check] = {
    "model": check_files.check_model,
    "data files": check_files.check_data_files,
    "retriever": check_retriever,
}
