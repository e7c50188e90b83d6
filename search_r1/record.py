"""Forests on disk: one JSON line per forest, the only trajectory format of the project.

A line is ``{"schema": 1, "step": ..., "forest": {"query": ..., "trees": [...]}}``. The keys are
the field names of the dataclasses in :mod:`search_r1.types`; a node stores only what it added, so
a shared prefix is written once. Reading a line gives back an equal forest, floats to the last bit;
numbers that are not finite are written as ``NaN`` and ``Infinity``.

Each line is one write to a file opened for appending, so several writers do not mix lines, and a
killed writer leaves at most one torn line.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from search_r1.ledger import Cost
from search_r1.tree import Forest, Node, Tree
from search_r1.types import Action, ActionKind, Document, Failure, Query, Reward, Step, StopReason

SCHEMA = 1


class Record(NamedTuple):
    """One line of a recording: the training step (None outside training) and its forest."""

    step: int | None
    forest: Forest


class TornLineWarning(UserWarning):
    """A line that its writer did not finish was skipped."""


def write_forest(path: str | Path, forest: Forest, *, step: int | None = None) -> None:
    """Append one forest to a JSONL file, creating the file and its folder where needed.

    A torn last line, left by a killed run, is closed first, so that it spoils no other line.
    Raises TypeError where ``query.extra`` holds something JSON has no form for.
    """
    record = {"schema": SCHEMA, "step": step, "forest": forest}
    line = json.dumps(record, default=_plain, separators=(",", ":")).encode() + b"\n"
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        if file.seek(0, 2) > 0:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                line = b"\n" + line
        written = file.write(line)
    if written != len(line):
        raise OSError(f"{path}: wrote {written} of {len(line)} bytes; is the disk full?")


def read_forests(path: str | Path, *, skip_torn: bool = False) -> Iterator[Record]:
    """Yield the records of a JSONL file one at a time.

    Raises ValueError naming file and line for a line of another schema or shape. A line that is
    not complete JSON is an error too, or with ``skip_torn`` a :class:`TornLineWarning`.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                values = json.loads(line)
            except ValueError as error:
                message = (
                    f"{where}: not a complete JSON line ({error}); the writer was probably killed"
                )
                if not skip_torn:
                    raise ValueError(f"{message}. Skip such lines, or delete this one") from error
                warnings.warn(f"{message}; skipped", TornLineWarning, stacklevel=2)
                continue
            yield _read_record(values, where)


def _plain(value: Any) -> Any:
    """What ``json`` cannot write by itself: dataclasses, mappings, numpy values."""
    if is_dataclass(value) and not isinstance(value, type):
        # children follow from the parents, in order of attachment
        return {f.name: getattr(value, f.name) for f in fields(value) if f.name != "children"}
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    if tolist := getattr(value, "tolist", None):
        return tolist()
    raise TypeError(f"a forest holds {value!r} of type {type(value).__name__}, not JSON data")


def _read_record(values: Any, where: str) -> Record:
    if not isinstance(values, dict) or "schema" not in values:
        raise ValueError(f"{where}: no forest record (it has no 'schema'); is this the right file?")
    record = cast("dict[str, Any]", values)
    if record["schema"] != SCHEMA:
        raise ValueError(
            f"{where}: schema {record['schema']!r}, expected {SCHEMA}; read it with the version "
            "of this package that wrote it"
        )
    try:
        forest = record["forest"]
        trees = [_read_tree(tree) for tree in forest["trees"]]
        return Record(record["step"], Forest(_read_query(forest["query"]), trees))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(
            f"{where}: damaged forest record ({type(error).__name__}: {error})"
        ) from error


def _read_query(values: dict[str, Any]) -> Query:
    tuples: dict[str, Any] = {
        name: tuple(values[name]) for name in ("prompt_ids", "golden_answers")
    }
    return Query(**(values | tuples))


def _read_tree(values: dict[str, Any]) -> Tree:
    root, *others = values["nodes"]
    rooted = Node(**(root | {"reward": _read_reward(root)}))
    tree = Tree(tuple(values["prompt_ids"]), [rooted])
    for index, node in enumerate(others, start=1):
        parent: int = node["parent"]
        depth: int = node["depth"]
        if not 0 <= parent < index or depth != tree.nodes[parent].depth + 1:
            raise ValueError(f"node {index} has parent {parent} and depth {depth}")
        parts = {"step": _read_step(node["step"]), "reward": _read_reward(node)}
        tree.nodes.append(Node(**(node | parts)))
        tree.nodes[parent].children.append(index)
    return tree


def _read_reward(node: dict[str, Any]) -> Reward | None:
    return None if node["reward"] is None else Reward(**node["reward"])


def _read_step(values: dict[str, Any]) -> Step:
    action, stop, failure = values["action"], values["stop"], values["failure"]
    parts: dict[str, Any] = {
        "token_ids": tuple(values["token_ids"]),
        "logprobs": tuple(values["logprobs"]),
        "observation_ids": tuple(values["observation_ids"]),
        "action": Action(ActionKind(action["kind"]), action["text"]),
        "documents": tuple(Document(**document) for document in values["documents"]),
        "cost": Cost(**values["cost"]),
        "stop": None if stop is None else StopReason(stop),
        "failure": None if failure is None else Failure(**failure),
    }
    return Step(**(values | parts))
