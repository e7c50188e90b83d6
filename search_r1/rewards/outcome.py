"""Outcome rewards: one number per leaf from its answer and its format.

The table (paper, section on reward design); "right" means EM = 1, or F1 > 0 for the F1 forms:

======  =====  ======  =======  ==============  =================
answer  right  format  ``em``   ``f1``          ``reference_f1``
======  =====  ======  =======  ==============  =================
yes     yes    valid   1        0.2 + 0.8 * F1  F1
yes     yes    broken  1 - 0.2  0.1 + 0.7 * F1  F1 - 0.2
yes     no     valid   0.2      0.2             0.2
yes     no     broken  0.1      0.1             0.1
no      -      -       0        0               0
======  =====  ======  =======  ==============  =================

``reference_f1`` is what the published code trains with. It is not monotone (F1 = 0.1 earns less
than F1 = 0) and can be negative; ``f1`` rises with F1 and is the default for F1 training.
``em_only`` and ``f1_only`` are the pure scores that validation reports.
"""

from __future__ import annotations

from search_r1.rewards.exact_match import exact_match
from search_r1.rewards.f1 import f1, uses_closed_answer_rule
from search_r1.rewards.format import is_valid_turns
from search_r1.types import Query, Reward, Trajectory

FORMAT_PENALTY = 0.2


def score_em(trajectory: Trajectory, query: Query) -> Reward:
    """Exact match shaped by the format, in [0, 1]; see the table of this module."""
    metrics = measure(trajectory, query)
    return Reward(_reference_value(metrics, metrics["em"]), metrics)


def score_f1(trajectory: Trajectory, query: Query) -> Reward:
    """``0.2 + 0.8*F1`` with a valid format, ``0.1 + 0.7*F1`` otherwise, 0 without an answer."""
    metrics = measure(trajectory, query)
    if not metrics["answered"]:
        return Reward(0.0, metrics)
    base, slope = (0.2, 0.8) if metrics["format"] else (0.1, 0.7)
    return Reward(base + slope * metrics["f1"], metrics)


def score_reference_f1(trajectory: Trajectory, query: Query) -> Reward:
    """F1 in the published code's form, in [-0.2, 1] and not monotone; see the table."""
    metrics = measure(trajectory, query)
    return Reward(_reference_value(metrics, metrics["f1"]), metrics)


def score_em_only(trajectory: Trajectory, query: Query) -> Reward:
    """Pure exact match, 0 or 1, whatever the format."""
    metrics = measure(trajectory, query)
    return Reward(metrics["em"], metrics)


def score_f1_only(trajectory: Trajectory, query: Query) -> Reward:
    """Pure F1, in [0, 1], whatever the format."""
    metrics = measure(trajectory, query)
    return Reward(metrics["f1"], metrics)


def measure(trajectory: Trajectory, query: Query) -> dict[str, float]:
    """``em``, ``f1``, ``format``, ``answered`` and ``searches`` (queries the retriever served).

    Reads what the model wrote and never an observation (FC-02). Raises ValueError for a query
    without golden answers.
    """
    golden = query.golden_answers
    if not golden:
        raise ValueError(
            f"query {query.uid} ({query.question!r}) has no golden answers, so it cannot be "
            "scored; give every scored row at least one"
        )
    answer = trajectory.answer
    rule = uses_closed_answer_rule(query.data_source)
    return {
        "em": exact_match(answer, golden),
        "f1": f1(answer, golden, closed_answer_rule=rule),
        "format": float(is_valid_turns(trajectory.turn_texts)),
        "answered": float(answer is not None),
        "searches": float(sum(step.cost.tool_calls for step in trajectory.steps)),
    }


def _reference_value(metrics: dict[str, float], score: float) -> float:
    if not metrics["answered"]:
        return 0.0
    if score > 0:
        return score if metrics["format"] else score - FORMAT_PENALTY
    return 0.2 if metrics["format"] else 0.1
