"""Checks of the model's directory: that it is there, its context length, its tokenizer.

Each is cheap: neither torch nor the model is loaded. A model that is not here is the business of
:func:`check_model`; the other checks then have nothing to say.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from verl_tree_grpo.recipe import is_local_path

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PLAIN_TEXT = "'{% for m in messages %}{{ m.content }}{% endfor %}'"
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
WEIGHTS = ("*.safetensors", "*.bin")


def model_dir(config: DictConfig) -> Path | None:
    """Where the model's files lie on this machine, the hub's cache included; None if nowhere."""
    path = str(config.actor_rollout_ref.model.path)
    if is_local_path(path):
        return Path(path) if os.path.isdir(path) else None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(path, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def is_here(config: DictConfig) -> bool:
    """Whether the model's configuration can be read on this machine."""
    directory = model_dir(config)
    return directory is not None and (directory / "config.json").is_file()


def check_model(config: DictConfig) -> Iterator[str]:
    """The model is here, or may be fetched."""
    key, path = "actor_rollout_ref.model.path", str(config.actor_rollout_ref.model.path)
    found = model_dir(config)
    if found is None and is_local_path(path):
        yield (
            f"{key} is {path}, but there is no such directory; expected a directory with "
            f"config.json, tokenizer and weights; put the model there, or set {key}=DIRECTORY"
        )
    elif found is None and _offline(config):
        yield (
            f"{key} is the hub id {path}, but HF_HUB_OFFLINE is set and the local cache does not "
            f"hold it; expected a local directory or network access; set {key}=DIRECTORY, or "
            "unset HF_HUB_OFFLINE"
        )
    elif found is not None and is_local_path(path):
        if not (found / "config.json").is_file():
            yield f"{path} has no config.json; expected a Hugging Face model directory; check {key}"
        elif not any(any(found.glob(pattern)) for pattern in WEIGHTS):
            yield f"{path} has no weights; expected *.safetensors; copy them there, or check {key}"


def _offline(config: DictConfig) -> bool:
    ours = config.ray_kwargs.ray_init.runtime_env.env_vars
    value = ours.get("HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE", ""))
    return str(value).upper() in ("1", "TRUE", "YES", "ON")


def check_context(config: DictConfig) -> Iterator[str]:
    """Prompt and response fit the model's context."""
    directory = model_dir(config)
    assert directory is not None
    described = json.loads((directory / "config.json").read_text())
    limit = described.get("max_position_embeddings")
    needed = config.actor_rollout_ref.rollout.max_model_len
    if limit is not None and needed > limit:
        yield (
            f"prompt and response take up to {needed} tokens (data.max_prompt_length "
            f"{config.data.max_prompt_length} + response {config.data.max_response_length}), "
            f"expected at most the model's max_position_embeddings = {limit}; lower "
            "data.max_prompt_length, tree.max_turns, tree.max_turn_tokens or "
            "tree.max_observation_tokens, or set tree.max_response_tokens"
        )


def check_tokenizer(config: DictConfig) -> Iterator[str]:
    """The tokenizer loads and knows how to render a conversation."""
    directory = tokenizer_dir(config)
    if directory is None:
        return
    try:
        tokenizer = load_tokenizer(directory)
    except Exception as error:  # the tokenizers library raises a bare Exception
        yield f"the tokenizer of {directory} does not load ({error}); copy its files again"
        return
    if tokenizer is None and not any(directory.glob("tokenizer*")):
        yield f"{directory} has no tokenizer files, expected tokenizer.json; copy them there"
        return
    template = config.actor_rollout_ref.model.custom_chat_template
    if template is None and not _has_template(directory):
        yield (
            f"the tokenizer of {directory} has no chat template; expected chat_template in "
            "tokenizer_config.json, or a chat_template.jinja; use an instruct model, or ask for "
            f'plain text: "actor_rollout_ref.model.custom_chat_template={PLAIN_TEXT}"'
        )


def tokenizer_dir(config: DictConfig) -> Path | None:
    """Where the tokenizer's files lie on this machine; None if nowhere."""
    path = config.actor_rollout_ref.model.tokenizer_path
    if path is not None and os.path.isdir(path):
        return Path(path)
    return model_dir(config)


def load_tokenizer(directory: Path) -> Tokenizer | None:
    """``tokenizer.json`` through the tokenizers library (transformers would import torch)."""
    from tokenizers import Tokenizer

    file = directory / "tokenizer.json"
    return Tokenizer.from_file(str(file)) if file.is_file() else None


def _has_template(directory: Path) -> bool:
    settings = directory / "tokenizer_config.json"
    if settings.is_file() and json.loads(settings.read_text()).get("chat_template"):
        return True
    return any((directory / name).is_file() for name in TEMPLATE_FILES)
