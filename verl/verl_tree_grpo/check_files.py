"""Checks of the files a run reads: the model's directory, its tokenizer, the parquet files.

Each is cheap: no torch, no model, only the parquet columns in question. A file that is missing is the
business of ``check_model`` and ``check_data_files``; the other checks then have nothing to say.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from verl_tree_grpo.recipe import is_local_path

if TYPE_CHECKING:
    import pyarrow as pa
    from tokenizers import Tokenizer

PLAIN_TEXT = "'{% for m in messages %}{{ m.content }}{% endfor %}'"
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
WEIGHTS = ("*.safetensors", "*.bin")
LONGEST = 5
"""Prompts of a file whose length is measured in tokens: the longest ones in characters."""


def model_dir(config: DictConfig) -> Path | None:
    """Where the model's files lie on this machine, the hub's cache included; None if nowhere."""
    path = str(config.actor_rollout_ref.model.path)
    if is_local_path(path):
        return Path(path) if os.path.isdir(path) else None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(path, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def check_model(config: DictConfig) -> Iterator[str]:
    """The model is here, or may be fetched."""
    key, path = "actor_rollout_ref.model.path", str(config.actor_rollout_ref.model.path)
    found = model_dir(config)
    if found is None and is_local_path(path):
        yield (
            f"{key} is {path}, but there is no such directory; expected a directory with "
            "config.json, tokenizer and weights; put the model there, or set model= or {key}="
        ).replace("{key}", key)
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
            yield f"{path} has no weights, expected *.safetensors; complete the copy, or check {key}"


def _offline(config: DictConfig) -> bool:
    ours = config.ray_kwargs.ray_init.runtime_env.env_vars
    value = ours.get("HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE", ""))
    return str(value).upper() in ("1", "TRUE", "YES", "ON")


def check_context(config: DictConfig) -> Iterator[str]:
    """Prompt and response fit the model's context."""
    directory = model_dir(config)
    if directory is None or not (directory / "config.json").is_file():
        return
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
    directory = _tokenizer_dir(config)
    if directory is None:
        return
    try:
        tokenizer = load_tokenizer(directory)
    except Exception as error:  # the tokenizers library raises a bare Exception
        yield f"the tokenizer of {directory} does not load ({error}); copy its files again"
        return
    if tokenizer is None and not any(directory.glob("tokenizer*")):
        yield f"{directory} has no tokenizer files, expected tokenizer.json; copy them there"
    elif config.actor_rollout_ref.model.custom_chat_template is None and not _has_template(directory):
        yield (
            f"the tokenizer of {directory} has no chat template; expected chat_template in "
            "tokenizer_config.json, or a chat_template.jinja; use an instruct model, or ask for "
            f'plain text: "actor_rollout_ref.model.custom_chat_template={PLAIN_TEXT}"'
        )


def _tokenizer_dir(config: DictConfig) -> Path | None:
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


def data_files(config: DictConfig) -> Iterator[tuple[str, str]]:
    """``(key, path)`` of every training and validation file."""
    for key in ("data.train_files", "data.val_files"):
        value = OmegaConf.select(config, key)
        for path in value if OmegaConf.is_list(value) else [value]:
            yield key, os.path.expanduser(str(path))


def check_data_files(config: DictConfig) -> Iterator[str]:
    """The parquet files are there."""
    for key, path in data_files(config):
        if not os.path.isfile(path):
            yield (
                f"{key} is {path}, but there is no such file; expected a parquet file; build it "
                f"(docs/recipes.md lists the commands), or set {key}=FILE"
            )


def check_rows(config: DictConfig) -> Iterator[str]:
    """Every row has a prompt, a question and a gold answer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for key, path in data_files(config):
        if not os.path.isfile(path):
            continue
        try:
            names = pq.read_schema(path).names
        except (pa.ArrowInvalid, OSError) as error:
            yield f"{key} is {path}, which is not a parquet file ({error}); build it again"
            continue
        needed = (config.data.prompt_key, config.data.reward_fn_key, "reward_model")
        missing = [name for name in needed if name not in names]
        if missing:
            yield (
                f"{path} has no column {', '.join(missing)}; got {', '.join(names)}; build it with "
                "`tree-grpo data`"
            )
            continue
        columns = [c for c in (*needed, "question", "extra_info") if c in names]
        yield from _faults_of_rows(path, pq.read_table(path, columns=columns), needed[0])


def _faults_of_rows(path: str, table: pa.Table, prompt_key: str) -> Iterator[str]:
    if table.num_rows == 0:
        yield f"{path} has no rows; expected at least one; build it again"
        return
    texts = {
        "an empty prompt": (prompt_key, _path_of(table.schema.field(prompt_key).type, "content")),
        "an empty question": ("question", ()),
        "an empty question in extra_info": ("extra_info", ("question",)),
        "no gold answer": ("reward_model", ("ground_truth", "target")),
    }
    for fault, (column, fields) in texts.items():
        values = _dig(table, column, fields)
        if values is None:
            if column == "reward_model":
                yield f"{path} has no reward_model.ground_truth.target; build it again"
            continue
        rows = blank_rows(values)
        if rows:
            shown = ", ".join(map(str, rows[:3])) + (", ..." if len(rows) > 3 else "")
            yield (
                f"{path}: {fault} in row {shown} ({len(rows)} of {table.num_rows} rows, counted "
                "from 0); expected text in every row; remove or repair these rows"
            )


def _path_of(kind: pa.DataType, field: str) -> tuple[str, ...]:
    import pyarrow.types as pt

    return (field,) if pt.is_list(kind) or pt.is_large_list(kind) else ()


def _dig(table: pa.Table, column: str, fields: Sequence[str]) -> pa.Array | None:
    """A nested column of ``table`` as one array, None where the schema lacks it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column not in table.column_names:
        return None
    array: Any = table[column].combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    for field in fields:
        if isinstance(array, pa.ListArray | pa.LargeListArray):
            inner = pc.struct_field(array.values, field)
            array = type(array).from_arrays(array.offsets, inner)
        elif isinstance(array, pa.StructArray) and array.type.get_field_index(field) >= 0:
            array = pc.struct_field(array, field)
        else:
            return None
    return array


def blank_rows(values: pa.Array) -> list[int]:
    """Rows of a string or list-of-strings array that hold no text, counted from 0."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = np.arange(len(values))
    if isinstance(values, pa.ListArray | pa.LargeListArray):
        owners, flat = pc.list_parent_indices(values), pc.list_flatten(values)
    else:
        owners, flat = pa.array(rows), values
    lengths = pc.fill_null(pc.utf8_length(pc.utf8_trim_whitespace(pc.cast(flat, pa.string()))), 0)
    with_text = np.asarray(owners)[np.asarray(lengths) > 0]
    return np.setdiff1d(rows, with_text).tolist()


def check_prompt_lengths(config: DictConfig) -> Iterator[str]:
    """The longest prompts fit ``data.max_prompt_length`` (their text alone; a template adds a few)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory = _tokenizer_dir(config)
    try:
        tokenizer = load_tokenizer(directory) if directory else None
    except Exception:  # check_tokenizer reports it
        return
    limit, key = config.data.max_prompt_length, config.data.prompt_key
    for _, path in data_files(config) if tokenizer else ():
        try:
            table = pq.read_table(path, columns=[key])
        except (pa.ArrowInvalid, OSError, KeyError):  # check_rows reports it
            continue
        for row, text in _longest(table, key):
            length = len(tokenizer.encode(text, add_special_tokens=False).ids)
            if length > limit:
                yield (
                    f"{path}: the prompt of row {row} has {length} tokens, expected at most "
                    f"data.max_prompt_length = {limit}; shorten or remove it, or raise the limit"
                )
                break


def _longest(table: pa.Table, key: str) -> Iterator[tuple[int, str]]:
    import numpy as np
    import pyarrow.compute as pc

    values = _dig(table, key, _path_of(table.schema.field(key).type, "content"))
    if values is None or not len(values):
        return
    texts = pc.binary_join(values, "") if hasattr(values, "offsets") and len(
        values.type.__class__.__name__
    ) and "List" in values.type.__class__.__name__ else values
    lengths = np.asarray(pc.fill_null(pc.utf8_length(texts), 0))
    for row in np.argsort(lengths)[::-1][:LONGEST].tolist():
        yield row, texts[row].as_py() or ""


def check_steps(config: DictConfig) -> Iterator[str]:
    """The training files hold a batch, and enough of them for the steps asked for."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    batch, steps = config.data.train_batch_size, config.trainer.total_training_steps
    try:
        rows = sum(pq.read_metadata(p).num_rows for k, p in data_files(config) if "train" in k)
    except (pa.ArrowInvalid, OSError):  # check_data_files and check_rows report it
        return
    if config.data.train_max_samples > 0:
        rows = min(rows, config.data.train_max_samples)
    reachable = rows // max(batch, 1) * config.trainer.total_epochs
    if rows < batch:
        yield (
            f"data.train_files hold {rows} rows, expected at least data.train_batch_size = {batch}; "
            "lower data.train_batch_size, or add rows"
        )
    elif steps is not None and reachable < steps:
        yield (
            f"{rows} rows make {rows // batch} steps an epoch, {reachable} in trainer.total_epochs "
            f"= {config.trainer.total_epochs}, expected trainer.total_training_steps = {steps}; "
            "raise trainer.total_epochs, or lower trainer.total_training_steps"
        )
