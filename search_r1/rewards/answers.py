"""Answers on both sides of the comparison: the one the model gave, and the ones accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

_CLOSED_BLOCK = re.compile(r"<(think|search|information)>.*?</\1>", re.DOTALL)
_ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)
_ANSWER_KEYS = ("value", "target", "answer", "aliases")


def extract_answer(text: str) -> str | None:
    """The last complete answer of a response, or None (FC-02, FC-13).

    Closed think, search and information blocks are skipped: what stands there was a thought, a
    query or retrieved text. An empty answer is no answer. Pass the response only, never the prompt.

    >>> extract_answer("<answer>a</answer><answer>b</answer>")
    'b'
    >>> extract_answer("<answer>a</answer><answer>b")
    'a'
    >>> extract_answer("<think><answer>draft</answer></think>") is None
    True
    """
    answers = _ANSWER.findall(_CLOSED_BLOCK.sub("", text))
    return answers[-1].strip() or None if answers else None


def flatten_answers(value: Any, row_id: object) -> tuple[str, ...]:
    """Golden answers in any shape the data sets use, as one flat tuple without repeats (FC-29).

    Accepts text, numbers, lists and arrays of any depth, JSON text of a list or object, and
    mappings with ``value``, ``target``, ``answer`` or ``aliases`` (the main answer comes first).
    Blank and missing members are dropped. Raises ValueError, naming ``row_id``, where nothing is
    left or a member is of another kind.

    >>> flatten_answers('["Oslo", "Kristiania"]', "nq-1")
    ('Oslo', 'Kristiania')
    >>> flatten_answers({"value": "Oslo", "aliases": ["Kristiania", "Oslo"]}, "nq-2")
    ('Oslo', 'Kristiania')
    >>> flatten_answers(1905, "nq-3")
    ('1905',)
    """
    answers = tuple(dict.fromkeys(_members(value, row_id)))
    if not answers:
        raise ValueError(
            f"row {row_id} has no golden answer: got {value!r}, expected at least one text that is "
            "not blank; drop the row or fill in its answers"
        )
    return answers


def _members(value: Any, row_id: object) -> Iterator[str]:
    if hasattr(value, "tolist"):  # numpy arrays and scalars, as parquet readers return them
        value = value.tolist()
    match value:
        case None:
            return
        case str():
            parsed = _parse_json(value)
            if parsed is not None:
                yield from _members(parsed, row_id)
            elif value.strip():
                yield value.strip()
        case bool():
            raise ValueError(
                f"row {row_id} has the golden answer {value!r}, a boolean; an unquoted yes "
                "or no was read as one: write the answer as text"
            )
        case int():
            yield str(value)
        case float() if value == value:
            yield str(int(value)) if value.is_integer() else str(value)
        case list() | tuple():
            for member in cast("list[Any]", value):
                yield from _members(member, row_id)
        case Mapping():
            found = {str(key).lower(): v for key, v in cast("Mapping[Any, Any]", value).items()}
            known = [found[key] for key in _ANSWER_KEYS if key in found]
            if not known:
                raise ValueError(
                    f"row {row_id} has a golden answer with the keys {sorted(found)}; expected "
                    f"one of {', '.join(_ANSWER_KEYS)}"
                )
            yield from _members(known, row_id)
        case _:
            raise ValueError(
                f"row {row_id} has a golden answer of type {type(value).__name__}: got {value!r}, "
                "expected text, a number, a list or a mapping"
            )


def _parse_json(text: str) -> list[Any] | dict[str, Any] | None:
    """The list, or the mapping of answers, that ``text`` spells in JSON; None for ordinary text."""
    if not text.lstrip().startswith(("[", "{")):
        return None
    try:
        parsed = json.loads(text)
    except ValueError:
        return None  # "[sic] Oslo" is an answer that happens to start with a bracket
    if isinstance(parsed, dict):
        mapping = cast("dict[str, Any]", parsed)
        return mapping if any(key.lower() in _ANSWER_KEYS for key in mapping) else None
    return cast("list[Any]", parsed)
