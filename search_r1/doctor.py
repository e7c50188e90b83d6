"""What is installed here, and whether it can work: one line a check."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple
from urllib.parse import urlsplit

VERL_VERSION = "0.9.1"
OPTIONAL: dict[str, str] = {
    "torch": "training",
    "ray": "training",
    "vllm": "training",
    "transfer_queue": "training",
    "flash_attn": "training on GPUs",
    "faiss": "retrieval server",
    "bm25s": "retrieval server",
    "fastapi": "retrieval server",
    "sentence_transformers": "retrieval server",
    "pyarrow": "data sets",
    "matplotlib": "plots",
}
"""Modules that only one part of the project needs, and which part."""


class Check(NamedTuple):
    """One line of the report. ``ok`` is None for a finding that is no fault (a missing extra)."""

    ok: bool | None
    text: str

    def __str__(self) -> str:
        mark = "--  " if self.ok is None else "ok  " if self.ok else "FAIL"
        return f"{mark} {self.text}"


def examine(retriever_url: str | None = None) -> Iterator[Check]:
    """Run every check: Python, upstream verl, the plugin, the optional modules, the retriever."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check(sys.version_info >= (3, 11), f"python {version} (needs 3.11 or newer)")
    yield check_verl()
    yield _check_plugin()
    distributions = metadata.packages_distributions()
    for module, purpose in OPTIONAL.items():
        if _find_origin(module) is None:
            yield Check(None, f"{module} not installed (only for: {purpose})")
        else:
            names = distributions.get(module, [])
            versions = ", ".join(f"{name} {metadata.version(name)}" for name in sorted(set(names)))
            yield Check(True, versions or f"{module} of unknown version")
    if retriever_url is not None:
        yield check_reachable(retriever_url)


def check_verl() -> Check:
    """Whether ``import verl`` gives upstream: a file of its own, in the supported version.

    Without upstream, the source folder ``verl/`` of this project would be taken for an empty
    namespace package, whose ``__file__`` is None.
    """
    origin = _find_origin("verl")
    if origin is None:
        if importlib.util.find_spec("verl") is None:
            return Check(None, "verl not installed (only for: training)")
        return Check(
            False,
            "import verl gives a namespace package without a file, not upstream verl; "
            f"install verl=={VERL_VERSION}",
        )
    version = metadata.version("verl")
    return Check(version == VERL_VERSION, f"verl {version} (needs {VERL_VERSION}) from {origin}")


def check_reachable(url: str, timeout_s: float = 2.0) -> Check:
    """Whether something accepts connections at the host and port of ``url``."""
    import socket

    address = urlsplit(url if "//" in url else f"//{url}")
    if address.hostname is None:
        raise ValueError(f"the retriever address is {url!r}; expected http://HOST:PORT")
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname, port), timeout_s).close()
    except OSError as error:
        return Check(False, f"retriever {address.hostname}:{port} unreachable: {error}")
    return Check(True, f"retriever {address.hostname}:{port} reachable")


def _check_plugin() -> Check:
    found = any(e.value == "verl_tree_grpo" for e in metadata.entry_points(group="verl.plugins"))
    if found:
        return Check(True, "plugin verl_tree_grpo registered with verl")
    return Check(
        False, "plugin verl_tree_grpo not registered with verl; install this project with pip"
    )


def _find_origin(module: str) -> str | None:
    """The file ``import module`` would load, or None; imports nothing."""
    spec = importlib.util.find_spec(module)
    return None if spec is None else spec.origin
