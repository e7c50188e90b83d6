"""Format check: think -> (search -> information -> think)* -> answer, as a state machine.

Nothing but white space stands outside the tags, nothing follows the answer, no tag stands inside
another. Thinking and answering without a search is valid (paper, section on reward design).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_TAG = re.compile(r"</?(?:think|search|information|answer)>")
_INFORMATION = re.compile(r"</?information>")

_NEXT: dict[tuple[str, str], str] = {
    ("start", "<think>"): "in think",
    ("in think", "</think>"): "thought",
    ("thought", "<search>"): "in search",
    ("in search", "</search>"): "searched",
    ("searched", "<information>"): "in information",
    ("in information", "</information>"): "informed",
    ("informed", "<think>"): "in think",
    ("thought", "<answer>"): "in answer",
    ("in answer", "</answer>"): "end",
}
_FREE_TEXT = frozenset({"in think", "in search", "in information", "in answer"})
_NEVER_EMPTY = frozenset({"in search", "in answer"})


def is_valid_text(text: str) -> bool:
    """Whether a whole response, observations included, follows the protocol.

    An empty query or answer is not an action, so it is not valid either.

    >>> is_valid_text("<think>t</think><answer>Oslo</answer>")
    True
    >>> is_valid_text("<think>t</think><answer>Oslo</answer> done")
    False
    """
    state, position = "start", 0
    for tag in _TAG.finditer(text):
        body = text[position : tag.start()]
        if (state not in _FREE_TEXT and body.strip()) or (
            state in _NEVER_EMPTY and not body.strip()
        ):
            return False
        state = _NEXT.get((state, tag[0]), "broken")
        position = tag.end()
    return state == "end" and not text[position:].strip()


def is_valid_turns(turn_texts: Sequence[str]) -> bool:
    """Whether the turns of a trajectory follow the protocol; reads the model's text only.

    Observations are ours, so each turn but the last is exactly a think and a search, and the last
    exactly a think and an answer. A turn that writes an information tag itself is never valid.

    >>> is_valid_turns(["<think>t</think><search>q</search>", "<think>u</think><answer>a</answer>"])
    True
    >>> is_valid_turns(["<think>t</think><search>q</search>"])
    False
    """
    if any(_INFORMATION.search(turn) for turn in turn_texts):
        return False
    return is_valid_text("<information></information>".join(turn_texts))
