"""Exact match (EM): the answer equals one golden answer after normalisation."""

from __future__ import annotations

from collections.abc import Iterable

from search_r1.rewards.normalise import normalise


def exact_match(answer: str | None, golden_answers: Iterable[str]) -> float:
    """1.0 where the answer equals any golden answer after normalisation, else 0.0.

    Degenerate cases: no answer scores 0, whatever the golden answers are. Where both sides
    normalise to nothing (``A``, ``The The``), they are compared as they stand, in lower case;
    otherwise every article would equal every other (FC-06).

    >>> exact_match("the Lodge.", ["Lodge (The)", "old lodge"])
    1.0
    >>> exact_match("The", ["A"]), exact_match("a", ["A"]), exact_match(None, ["The The"])
    (0.0, 1.0, 0.0)
    """
    if answer is None or not answer.strip():
        return 0.0
    return float(any(equals(answer, golden) for golden in golden_answers))


def equals(answer: str, golden: str) -> bool:
    """Whether two texts are equal after normalisation."""
    left, right = normalise(answer), normalise(golden)
    if not left and not right:
        return answer.strip().lower() == golden.strip().lower()
    return left == right
