"""Reward rules by name (``tree.reward``). A new rule is one function and one line here."""

from search_r1.protocols import Scorer
from search_r1.rewards.outcome import (
    score_em,
    score_em_only,
    score_f1,
    score_f1_only,
    score_reference_f1,
)

REWARDS: dict[str, Scorer] = {
    "em": score_em,
    "f1": score_f1,
    "reference_f1": score_reference_f1,
    "em_only": score_em_only,
    "f1_only": score_f1_only,
}
