"""Checks of the parquet files: that they are there, every row is whole, and there are enough rows.

They read the columns in question as arrays, never row by row, so a file of 300,000 rows takes about
a second. A missing file is the business of :func:`check_data_files`; the others then say nothing.
"""

# pyarrow.compute makes its functions at import time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from verl_tree_grpo.check_model import load_tokenizer, tokenizer_dir

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

LONGEST = 5
"""Prompts of a file whose length is measured in tokens: the longest ones in characters."""


def data_files(config: DictConfig) -> Iterator[tuple[str, str]]:
    """``(key, path)`` of every training and validation file."""
    for key in ("data.train_files", "data.val_files"):
        value = OmegaConf.select(config, key)
        for path in value if OmegaConf.is_list(value) else [value]:
            yield key, os.path.expanduser(str(path))


def are_here(config: DictConfig) -> bool:
    """Whether any of the files can be looked into."""
    return any(os.path.isfile(path) for _, path in data_files(config))


def check_data_files(config: DictConfig) -> Iterator[str]:
    """The parquet files are there."""
    for key, path in data_files(config):
        if not os.path.isfile(path):
            yield (
                f"{key} is {path}, but there is no such file; expected a parquet file; build it "
                f"with `tree-grpo data build` (docs/recipes.md), or set {key}=FILE"
            )


def _readable(config: DictConfig) -> Iterator[tuple[str, list[str]]]:
    """Paths of the files that are parquet, with their column names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for _, path in data_files(config):
        try:
            yield path, pq.read_schema(path).names
        except (pa.ArrowInvalid, OSError):  # check_data_files and check_rows report it
            continue


def check_rows(config: DictConfig) -> Iterator[str]:
    """Every row has a prompt, a question and a gold answer."""
    import pyarrow.parquet as pq

    readable = dict(_readable(config))
    for key, path in data_files(config):
        if os.path.isfile(path) and path not in readable:
            yield f"{key} is {path}, which is not a parquet file; expected one; build it again"
    prompt = config.data.prompt_key
    needed = (prompt, config.data.reward_fn_key, "reward_model")
    for path, names in readable.items():
        missing = [name for name in needed if name not in names]
        if missing:
            yield (
                f"{path} has no column {', '.join(missing)}; got {', '.join(names)}; expected the "
                "columns of docs/recipes.md; build it again"
            )
            continue
        columns = [c for c in (prompt, "reward_model", "question", "extra_info") if c in names]
        yield from _faults_of_rows(path, pq.read_table(path, columns=columns), prompt)


def _faults_of_rows(path: str, table: pa.Table, prompt: str) -> Iterator[str]:
    if table.num_rows == 0:
        yield f"{path} has no rows; expected at least one; build it again"
        return
    golds = dig(table, "reward_model", ("ground_truth", "target"))
    parts = {
        "an empty prompt": dig(table, prompt, ("content",)),
        "an empty question": dig(table, "question"),
        "an empty extra_info.question": dig(table, "extra_info", ("question",)),
        "no gold answer": golds,
    }
    if golds is None:
        yield f"{path} has no reward_model.ground_truth.target; expected a list of answers a row"
    for fault, values in parts.items():
        rows = [] if values is None else (text_lengths(values) == 0).nonzero()[0].tolist()
        if rows:
            shown = ", ".join(map(str, rows[:3])) + (", ..." if len(rows) > 3 else "")
            yield (
                f"{path}: {fault} in row {shown} ({len(rows)} of {table.num_rows} rows, counted "
                "from 0); expected text in every row; remove or repair these rows"
            )


def dig(table: pa.Table, column: str, fields: Sequence[str] = ()) -> pa.Array | None:
    """A column, or a field inside it, as one array; None where the schema lacks it.

    Fields of a list's structs come as a list each; a field of plain strings is those strings.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if column not in table.column_names:
        return None
    array: Any = pa.concat_arrays(table[column].chunks)
    for field in fields:
        if isinstance(array, pa.ListArray) and isinstance(array.values, pa.StructArray):
            array = pa.ListArray.from_arrays(array.offsets, pc.struct_field(array.values, field))
        elif isinstance(array, pa.StructArray):
            if array.type.get_field_index(field) < 0:
                return None
            array = pc.struct_field(array, field)
    return array if _holds_text(array.type) else None


def _holds_text(kind: pa.DataType) -> bool:
    import pyarrow.types as pt

    kind = kind.value_type if pt.is_list(kind) or pt.is_large_list(kind) else kind
    return pt.is_string(kind) or pt.is_large_string(kind)


def text_lengths(values: pa.Array) -> np.ndarray:
    """Characters a row holds without outer blanks, shape (rows,); strings or lists of strings."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(values, pa.ListArray | pa.LargeListArray):
        owners, flat = np.asarray(pc.list_parent_indices(values)), pc.list_flatten(values)
    else:
        owners, flat = np.arange(len(values)), values
    lengths = np.asarray(pc.fill_null(pc.utf8_length(pc.utf8_trim_whitespace(flat)), 0))
    return np.bincount(owners, weights=lengths, minlength=len(values)).astype(int)


def check_prompt_lengths(config: DictConfig) -> Iterator[str]:
    """The longest prompts fit ``data.max_prompt_length`` (their text; a template adds a few)."""
    import pyarrow.parquet as pq

    directory, prompt = tokenizer_dir(config), config.data.prompt_key
    try:
        tokenizer = load_tokenizer(directory) if directory else None
    except Exception:  # check_tokenizer reports it
        tokenizer = None
    if tokenizer is None:
        return
    limit = config.data.max_prompt_length
    for path, names in dict(_readable(config)).items():
        if prompt not in names:  # check_rows reports it
            continue
        texts = dig(pq.read_table(path, columns=[prompt]), prompt, ("content",))
        if texts is None:
            continue
        for row in text_lengths(texts).argsort()[::-1][:LONGEST].tolist():
            text = texts[row].as_py() or ""
            text = text if isinstance(text, str) else "".join(text)
            length = len(tokenizer.encode(text, add_special_tokens=False).ids)
            if length > limit:
                yield (
                    f"{path}: the prompt of row {row} has {length} tokens; expected at most "
                    f"data.max_prompt_length = {limit}; shorten or remove it, or raise the limit"
                )
                break


def check_steps(config: DictConfig) -> Iterator[str]:
    """The training files hold a batch, and enough of them for the steps asked for."""
    import pyarrow.parquet as pq

    readable = dict(_readable(config))
    files = [path for key, path in data_files(config) if key == "data.train_files"]
    if not all(path in readable for path in files):
        return
    rows = sum(pq.read_metadata(path).num_rows for path in files)
    if config.data.train_max_samples > 0:
        rows = min(rows, config.data.train_max_samples)
    batch, steps = config.data.train_batch_size, config.trainer.total_training_steps
    reachable = rows // max(batch, 1) * config.trainer.total_epochs
    if rows < batch:
        yield (
            f"data.train_files hold {rows} rows; expected at least data.train_batch_size = "
            f"{batch}; lower data.train_batch_size, or add rows"
        )
    elif steps is not None and reachable < steps:
        yield (
            f"{rows} rows make {rows // batch} steps an epoch, {reachable} in trainer.total_epochs "
            f"= {config.trainer.total_epochs}; expected trainer.total_training_steps = {steps}; "
            "raise trainer.total_epochs, or lower trainer.total_training_steps"
        )
