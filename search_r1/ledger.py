"""What a rollout cost: tokens, tool calls and seconds, added up along the way.

The paper compares methods at equal budget by a formula (its section on budgets); a formula is not
a measurement, so every step carries a :class:`Cost` and sums of costs are what gets reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, slots=True)
class Cost:
    """The price of one step, or of many added together.

    Attributes:
        generated_tokens: tokens sampled from the policy.
        prompt_tokens: tokens sent to the engine as context.
        cached_tokens: of those, tokens the engine took from its prefix cache.
        tool_calls: queries that reached the retriever (retries of one query count once).
        tool_s: seconds spent waiting for the retriever.
        policy_s: seconds spent waiting for the policy.
    """

    generated_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tool_calls: int = 0
    tool_s: float = 0.0
    policy_s: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Cost)))

    @classmethod
    def total(cls, costs: Iterable[Cost]) -> Cost:
        """The sum of many costs; the zero cost for none."""
        return sum(costs, cls())

    @property
    def cached_fraction(self) -> float:
        """Share of context tokens served from the prefix cache, in [0, 1]."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def as_dict(self) -> dict[str, float]:
        """Field name to value, for records and metrics."""
        return asdict(self)


def paper_budget(M: int, N: int, L: int) -> float:
    """Expected cost of one prompt in units of one chain, as the paper counts it: ``M + M*L*N/2``.

    The reference draws the root too, so short questions measure 25 to 50 % more than this.

    >>> paper_budget(2, 2, 1)
    4.0
    >>> paper_budget(4, 5, 1)
    14.0
    """
    return M + M * L * N / 2
