"""Answer normalisation of the SQuAD script, shared by exact match and F1.

Comparable with published numbers, therefore nothing else is folded: dashes, composed accents and
full-width digits stay what they are (paper, section on metrics; FC-32).
"""

from __future__ import annotations

import re
import string
from functools import lru_cache

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)


@lru_cache(maxsize=1 << 16)
def normalise(text: str) -> str:
    """Lower case, drop ASCII punctuation, drop a/an/the, squeeze spaces, in this order.

    The result is empty for a text that holds only articles and punctuation. Cached, because the
    golden answers of a prompt meet every leaf of its forest.

    >>> normalise("  The Lodge, (Old)  ")
    'lodge old'
    >>> normalise("The The")
    ''
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_DROP_PUNCTUATION)).split())
