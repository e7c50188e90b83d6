"""Token F1: overlap of the bags of normalised words, best over the golden answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from search_r1.rewards.exact_match import equals
from search_r1.rewards.normalise import normalise

CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})

CLOSED_ANSWER_SOURCES: dict[str, bool] = {
    "hotpotqa": True,
    "2wikimultihopqa": True,
    "2wiki": True,
}
"""Data sources whose official script refuses partial credit against yes/no/noanswer (FC-19)."""


def uses_closed_answer_rule(data_source: str) -> bool:
    """Whether F1 on this data source needs yes/no/noanswer to match exactly.

    Case and the ``searchR1_`` prefix that verl's preprocessing writes are ignored.

    >>> uses_closed_answer_rule("searchR1_hotpotqa"), uses_closed_answer_rule("nq")
    (True, False)
    """
    return CLOSED_ANSWER_SOURCES.get(data_source.lower().removeprefix("searchr1_"), False)


def f1(answer: str | None, golden_answers: Iterable[str], *, closed_answer_rule: bool) -> float:
    """Best ``2*P*R / (P + R)`` over golden answers, P and R on bags of normalised words.

    With ``closed_answer_rule``, a pair where exactly one side is yes, no or noanswer scores 0
    (HotpotQA and 2WikiMultiHopQA scripts). Degenerate cases: no answer scores 0; a pair that is an
    exact match scores 1 even where both sides normalise to nothing, so F1 >= EM on every sample.

    >>> round(f1("no, it was Lima", ["no"], closed_answer_rule=False), 4)
    0.4
    >>> f1("no, it was Lima", ["no"], closed_answer_rule=True)
    0.0
    """
    if answer is None or not answer.strip():
        return 0.0
    return max(
        (_pair(answer, golden, closed_answer_rule) for golden in golden_answers), default=0.0
    )


def _pair(answer: str, golden: str, closed_answer_rule: bool) -> float:
    if equals(answer, golden):
        return 1.0
    left, right = normalise(answer), normalise(golden)
    if closed_answer_rule and (left in CLOSED_ANSWERS or right in CLOSED_ANSWERS):
        return 0.0
    words, golden_words = left.split(), right.split()
    shared = (Counter(words) & Counter(golden_words)).total()
    return 2 * shared / (len(words) + len(golden_words)) if shared else 0.0
