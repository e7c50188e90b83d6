"""The one piece of group arithmetic every estimator shares: the z-score."""

from __future__ import annotations

import math
from collections.abc import Sequence

EPSILON = 1e-6


def z_scores(values: Sequence[float | None]) -> list[float | None]:
    """``(v - mean) / (std + 1e-6)`` with the unbiased standard deviation, in float64.

    Degenerate cases: None and NaN (a failed leaf) stay out of mean and deviation and come back as
    None; one valid value, or equal values, give exactly 0.0 (FC-14, FC-37).

    >>> z_scores([1, 1, 1, None])
    [0.0, 0.0, 0.0, None]
    >>> [round(z, 4) for z in z_scores([1, 0, 0]) if z is not None]
    [1.1547, -0.5773, -0.5773]
    """
    valid = [float(v) for v in values if v is not None and not math.isnan(v)]
    if any(math.isinf(v) for v in valid):
        raise ValueError(f"a reward is infinite, expected finite numbers or None: got {values}")
    if not valid or min(valid) == max(valid):
        return [None if v is None or math.isnan(v) else 0.0 for v in values]
    mean = math.fsum(valid) / len(valid)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in valid) / (len(valid) - 1))
    return [None if v is None or math.isnan(v) else (v - mean) / (std + EPSILON) for v in values]
