"""Text of one turn -> the action it asks for.

Closed think blocks are skipped: a tag mentioned while thinking is a word, not an action (FC-12,
FC-13). Of what remains, the earliest complete action counts, and nothing behind it does (FC-05).
Tags are lower case (FC-30). An action that holds a tag of the other kind is invalid, so that
``<search>lakes <answer>Oslo</answer></search>`` never passes for an answer (FC-12).
"""

from __future__ import annotations

import re

from search_r1.types import Action, ActionKind

STOP_STRINGS = ("</search>", "</answer>")
"""Where the engine stops; the stop string stays in the output."""

_CLOSED_THINK = re.compile(r"<think>.*?</think>", re.DOTALL)
_TAG = re.compile(r"<(/?)(search|answer)>")


def find_action(text: str) -> tuple[Action, int]:
    """The first complete action of a turn, and the position just behind it.

    An invalid turn carries the reason as its text.

    >>> find_action("<think>t</think><search> lakes </search> tail")
    (Action(kind=<ActionKind.SEARCH: 'search'>, text='lakes'), 40)
    """
    visible = _CLOSED_THINK.sub(lambda m: " " * len(m[0]), text)
    opened: re.Match[str] | None = None
    for tag in _TAG.finditer(visible):
        closing, kind = bool(tag[1]), tag[2]
        if not closing:
            if opened is not None and opened[2] != kind:
                return _invalid(f"{kind} tag inside {opened[2]}"), _end_of_next_close(visible, tag)
            opened = tag
        elif opened is not None:
            if opened[2] == kind:
                body = text[opened.end() : tag.start()].strip()
                action = Action(ActionKind(kind), body) if body else _invalid(f"empty {kind}")
                return action, tag.end()
            opened = None
    return _invalid("no complete action"), len(text)


def _invalid(reason: str) -> Action:
    return Action(ActionKind.INVALID, reason)


def _end_of_next_close(text: str, after: re.Match[str]) -> int:
    ends = [tag.end() for tag in _TAG.finditer(text, after.end()) if tag[1]]
    return ends[0] if ends else len(text)
