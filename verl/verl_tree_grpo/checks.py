"""What is verified before anything heavy starts.

A check is a function from the configuration to messages, none where all is well; each says what,
got, expected and what to do. ``STRUCTURE`` concerns the configuration alone, ``FILES`` the content
of files that are here, ``SURROUNDINGS`` what has to be here: a dry run only warns about the last.
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
from verl_tree_grpo import check_data, check_model
from verl_tree_grpo.recipe import data_parallel_size, derive, tree_config, world_size

Check = Callable[[DictConfig], Iterable[str]]
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PROBE_TIMEOUT_S = 5.0
LOADING_S = 600.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check: its messages, whether they forbid a run, whether it could run."""

    check: str
    messages: tuple[str, ...]
    fatal: bool = True
    ran: bool = True

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
        findings += [_run(name, check, config) for name, check in STRUCTURE.items()]
        for name, (check, is_possible) in FILES.items():
            possible = is_possible(config)
            findings.append(_run(name, check, config) if possible else Finding(name, (), ran=False))
    for name, check in SURROUNDINGS.items():
        findings.append(_run(name, check, config, fatal=not dry_run))
    # A large index loads for minutes: worth waiting for only where nothing else is in the way.
    refused = dry_run or any(finding.failed for finding in findings)
    silence = tuple(check_retriever(config, loading_s=0.0 if refused else LOADING_S))
    return config, [*findings, Finding("retriever", silence, fatal=not dry_run)]


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
    micro = actor.ppo_micro_batch_size_per_gpu
    ranks, rows = data_parallel_size(config), mini * rollout.n
    if ranks < 1 or rows % ranks:
        yield (
            f"a mini-batch has {mini} prompts * {rollout.n} leaves = {rows} rows, expected a "
            f"multiple of the {ranks} data-parallel ranks; change "
            "actor_rollout_ref.actor.ppo_mini_batch_size or the tree"
        )
    elif not actor.use_dynamic_bsz and rows // ranks % micro:
        yield (
            f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu is {micro}, expected a divisor "
            f"of the {rows // ranks} rows a rank has of a mini-batch; leave it unset"
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


def check_retriever(config: DictConfig, loading_s: float = 0.0) -> Iterator[str]:
    """The retrieval server answers, ``loading_s`` from now at the latest if it still loads."""
    from search_r1.protocols import RetrieverError
    from search_r1.retrieval import probe

    url = str(config.tree.retriever_url)
    try:
        probe(url, PROBE_TIMEOUT_S, loading_s=loading_s)
    except (RetrieverError, ValueError) as error:
        yield (
            f"{error} (or: INDEX=DIR PORT={urlsplit(url).port or 80} bash "
            "scripts/launch_retriever.sh); another server is set by tree.retriever_url"
        )


STRUCTURE: dict[str, Check] = {
    "groups": check_groups,
    "batches": check_batches,
    "devices": check_devices,
}

FILES: dict[str, tuple[Check, Callable[[DictConfig], bool]]] = {
    "context length": (check_model.check_context, check_model.is_here),
    "tokenizer": (check_model.check_tokenizer, check_model.is_here),
    "prompt lengths": (check_data.check_prompt_lengths, check_model.is_here),
    "data rows": (check_data.check_rows, check_data.are_here),
    "number of steps": (check_data.check_steps, check_data.are_here),
}
"""Each with what has to be here for it to say anything."""

SURROUNDINGS: dict[str, Check] = {
    "model": check_model.check_model,
    "data files": check_data.check_data_files,
}
