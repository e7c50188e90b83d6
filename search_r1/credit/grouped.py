"""Credit for a training batch: rows in any order, grouped by their ids, never by position."""

from __future__ import annotations

from collections.abc import Sequence

from search_r1.credit import estimate


def advantages_by_row(
    name: str,
    rewards: Sequence[float | None],
    uids: Sequence[str],
    tree_uids: Sequence[str],
) -> list[float | None]:
    """One advantage a row; equal ``uid`` means the same prompt, equal ``tree_uid`` the same tree.

    Rows may come in any order, and the result follows its row (FC-36). A tree belongs to its
    prompt: equal tree uids under different uids are different trees. Uids are opaque: ``"007"`` is
    not ``"7"`` (FC-08), and anything but text is refused.

    >>> advantages_by_row("grpo", [1, 0, 0, 0], ["p", "q", "p", "q"], ["t"] * 4)[1]
    0.0
    """
    if not len(rewards) == len(uids) == len(tree_uids):
        raise ValueError(
            f"got {len(rewards)} rewards, {len(uids)} uids and {len(tree_uids)} tree uids; "
            "expected one of each per row"
        )
    prompts: dict[str, dict[str, list[int]]] = {}
    for row, (uid, tree_uid) in enumerate(zip(uids, tree_uids, strict=True)):
        for value in (uid, tree_uid):
            if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(
                    f"row {row} has the uid {value!r} of type {type(value).__name__}; uids are "
                    "opaque text, pass them unconverted"
                )
        prompts.setdefault(uid, {}).setdefault(tree_uid, []).append(row)
    advantages: list[float | None] = [None] * len(rewards)
    for trees in prompts.values():
        rows_by_tree = list(trees.values())
        estimates = estimate(name, [[rewards[row] for row in rows] for rows in rows_by_tree])
        for rows, values in zip(rows_by_tree, estimates, strict=True):
            for row, value in zip(rows, values, strict=True):
                advantages[row] = value
    return advantages
