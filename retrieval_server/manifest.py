"""The manifest of an index directory: what it was built from, checked whenever it is opened."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from retrieval_server.encoder import Encoder

FILE = "manifest.json"
CORPUS = "corpus.jsonl"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class EncoderFacts:
    """The encoder of a dense index, by everything that changes a vector."""

    name: str
    family: str
    dim: int
    query_prefix: str
    passage_prefix: str
    pooling: str
    normalised: bool

    @classmethod
    def of(cls, encoder: Encoder) -> EncoderFacts:
        """The facts of a loaded encoder."""
        family = encoder.family
        return cls(
            name=encoder.name,
            family=encoder.family_name,
            dim=encoder.dim,
            query_prefix=family.query_prefix,
            passage_prefix=family.passage_prefix,
            pooling=family.pooling,
            normalised=family.normalised,
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an index directory holds. ``corpus_sha256`` is over the normalised rows."""

    backend: str
    index_type: str
    rows: int
    corpus_bytes: int
    corpus_sha256: str
    encoder: EncoderFacts | None
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write ``manifest.json``."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read ``manifest.json``; ValueError where the folder is no index of this format."""
        path = folder / FILE
        if not path.is_file():
            raise ValueError(
                f"{folder} is no index directory: it has no {FILE}; build one with: "
                f"tree-grpo index --corpus corpus.jsonl --out {folder}"
            )
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values.get("format") != FORMAT:
                raise ValueError(f"format {values.get('format')!r}, expected {FORMAT}")
            facts = values.pop("encoder")
            return cls(encoder=None if facts is None else EncoderFacts(**facts), **values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} cannot be read ({error}); build the index again") from error
