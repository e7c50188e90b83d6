"""Open an index for serving, and refuse parts that do not belong together, naming both sides."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from retrieval_server.backends import BACKENDS
from retrieval_server.backends.faiss_index import FaissBackend, agreement, read_faiss
from retrieval_server.corpus import Corpus, dump_row, read_rows
from retrieval_server.encoder import Encoder, load_encoder
from retrieval_server.manifest import CORPUS, EncoderFacts, Manifest
from retrieval_server.protocols import Backend

HASHED_BYTES = 64 * 1024 * 1024
"""A larger corpus is compared by size and rows only: hashing it would delay the start."""

log = logging.getLogger(__name__)


def open_index(
    index: Path,
    *,
    corpus: Path | None = None,
    encoder: Encoder | str | None = None,
    family: str | None = None,
    device: str = "cpu",
    allow_download: bool = False,
) -> Backend:
    """Open an index directory, or a bare FAISS file (``e5_Flat.index``) with its ``corpus``.

    ``encoder`` may be left out for a directory, whose manifest names it. Raises ValueError for
    whatever does not fit.
    """
    if not index.exists():
        raise ValueError(f"there is no index {index}; build one with: tree-grpo index")

    manifest = Manifest.read(index) if index.is_dir() else None
    built = manifest.encoder if manifest is not None else None
    if manifest is not None and built is None and encoder is not None:
        raise ValueError(
            f"{index} has the backend {manifest.backend!r}, which takes no encoder; "
            "leave --encoder out"
        )
    if manifest is None and (corpus is None or encoder is None):
        raise ValueError(
            f"{index} is a file; a FAISS index file needs --corpus and --encoder beside it"
        )
    if manifest is not None and corpus is not None:
        check_same_corpus(manifest, corpus, index)
    if encoder is None and built is not None:
        encoder = built.name
    if isinstance(encoder, str):
        family = family or (built and built.family)
        encoder = load_encoder(encoder, family=family, device=device, allow_download=allow_download)
    if manifest is not None:
        return open_directory(index, manifest, encoder)
    assert corpus is not None and encoder is not None, "checked above"
    return open_faiss_file(index, corpus, encoder)


def open_directory(folder: Path, manifest: Manifest, encoder: Encoder | None) -> Backend:
    """Open what :func:`retrieval_server.build.build_index` wrote, checked against its manifest."""
    if manifest.backend not in BACKENDS:
        raise ValueError(
            f"{folder} has the backend {manifest.backend!r}, expected one of {', '.join(BACKENDS)}"
        )
    if encoder is not None and manifest.encoder is not None:
        check_same_encoder(folder, manifest.encoder, EncoderFacts.of(encoder))
    corpus = Corpus(folder / CORPUS)
    check_corpus_file(folder, manifest, len(corpus))
    backend = BACKENDS[manifest.backend].open(corpus, folder, encoder)
    if isinstance(backend, FaissBackend) and (similarity := agreement(backend)) < 0.98:
        raise ValueError(
            f"the vectors in {folder} and those the encoder makes from the same passages have a "
            f"cosine of only {similarity:.3f}, expected 1: the encoder's weights differ from those "
            "the index was built with; build it again"
        )
    return backend


def open_faiss_file(index: Path, corpus_path: Path, encoder: Encoder) -> FaissBackend:
    """Open a FAISS file that another program built; a doubtful match is logged as a warning."""
    backend = FaissBackend(read_faiss(index), Corpus(corpus_path), encoder, str(index))
    if len(backend) and hasattr(backend.index, "get_xb") and agreement(backend) < 0.95:
        log.warning(
            "vectors in %s and those the encoder %r makes from the same rows of %s have a cosine "
            "of only %.3f, expected about 1: is it the right model, and the right corpus?",
            index,
            encoder.name,
            corpus_path,
            agreement(backend),
        )
    return backend


def check_same_encoder(folder: Path, built: EncoderFacts, given: EncoderFacts) -> None:
    """ValueError naming the first fact in which two encoders differ."""
    for fact in EncoderFacts.__slots__:
        ours, theirs = getattr(given, fact), getattr(built, fact)
        if ours != theirs and fact != "name":  # the same model may lie at another path
            raise ValueError(
                f"{folder} was built with the encoder {built.name!r} ({fact} {theirs!r}), but the "
                f"encoder {given.name!r} has {fact} {ours!r}; use {built.name!r}"
            )


def check_corpus_file(folder: Path, manifest: Manifest, rows: int) -> None:
    """ValueError where the corpus in the directory is not the one that was indexed."""
    path = folder / CORPUS
    size = path.stat().st_size
    found, expected = (rows, size), (manifest.rows, manifest.corpus_bytes)
    if found == expected and size <= HASHED_BYTES:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        expected = manifest.corpus_sha256
    if found != expected:
        raise ValueError(
            f"{path} changed since the index was built: got {found}, expected {expected} "
            "(rows and bytes, or SHA-256); build the index again"
        )


def check_same_corpus(manifest: Manifest, corpus: Path, folder: Path) -> None:
    """ValueError where a corpus given beside an index directory is not the indexed one."""
    digest = hashlib.sha256()
    for row in read_rows(corpus):
        digest.update(dump_row(row))
    if digest.hexdigest() != manifest.corpus_sha256:
        raise ValueError(
            f"{corpus} has the fingerprint {digest.hexdigest()[:12]}, but {folder} was built from "
            f"{manifest.corpus_sha256[:12]}; leave --corpus out, or build the index again"
        )
