"""The HTTP face of a backend: ``POST /retrieve``, ``GET /healthz``, ``GET /readyz``.

``create_app(backend)`` serves a loaded backend. ``create_app(load=function)`` starts to listen at
once, loads in a thread, and answers 503 until that is done.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from retrieval_server.batching import Batcher
from retrieval_server.limits import BodyLimit, Limits, RetrieveAnswer, RetrieveRequest
from retrieval_server.protocols import Backend, Hit
from search_r1 import __version__

log = logging.getLogger(__name__)


@dataclass(slots=True)
class State:
    """What the app serves: nothing yet, a backend behind its batcher, or a failure to load."""

    batcher: Batcher | None = None
    failure: Exception | None = None
    load_s: float = 0.0

    def report(self) -> tuple[int, dict[str, Any]]:
        """Status and body of the health routes."""
        if self.failure is not None:
            return 500, {"status": "failed", "detail": str(self.failure)}
        if self.batcher is None:
            return 503, {"status": "loading", "detail": "the index is loading; try again"}
        backend = self.batcher.backend
        return 200, {
            "status": "ok",
            "backend": backend.name,
            "corpus_size": len(backend),
            "load_s": round(self.load_s, 2),
        }


def create_app(
    retriever: Backend | None = None,
    *,
    load: Callable[[], Backend] | None = None,
    topk: int = 3,
    limits: Limits | None = None,
    max_parallel: int = 2,
    on_loaded: Callable[[State], None] = lambda state: None,
) -> FastAPI:
    """An app around ``retriever``, or around what ``load()`` returns in a background thread.

    ``topk`` serves requests that name none. ``on_loaded`` hears of success and of failure.
    """
    if (retriever is None) == (load is None):
        raise ValueError("create_app needs exactly one of retriever and load")
    if topk < 1:
        raise ValueError(f"got topk {topk}, expected at least 1")
    limits = limits or Limits()
    state = State()

    def loaded(backend: Backend) -> None:
        state.batcher = Batcher(backend, max_parallel=max_parallel)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        if load is not None:
            load_in_background(load, loaded, state, on_loaded)
        elif retriever is not None:
            loaded(retriever)
        yield
        if state.batcher is not None:
            state.batcher.close()

    app = FastAPI(title="Tree-GRPO retrieval server", version=__version__, lifespan=lifespan)
    app.add_middleware(BodyLimit, max_bytes=limits.body_bytes)
    app.add_exception_handler(RequestValidationError, explain_invalid)

    @app.get("/healthz")
    @app.get("/readyz")
    async def healthz() -> Response:
        status, body = state.report()
        return JSONResponse(body, status, {"Retry-After": "1"} if status == 503 else None)

    @app.post("/retrieve", response_model=RetrieveAnswer)
    async def retrieve(request: RetrieveRequest) -> Response:
        if state.batcher is None:
            return await healthz()
        wanted = topk if request.topk is None else request.topk
        if complaint := limits.complaint(request.queries, wanted):
            return JSONResponse({"detail": complaint}, 422)
        try:
            found = await answer(state.batcher, request.queries, wanted)
        except Exception as error:
            log.exception("search failed")
            detail = f"the search failed: {type(error).__name__}: {error}"
            return JSONResponse({"detail": detail.encode("ascii", "replace").decode()}, 500)
        return Response(render(found, request.return_scores), media_type="application/json")

    return app


async def answer(batcher: Batcher, queries: Sequence[str], topk: int) -> list[list[Hit]]:
    """One list per query; a blank query finds nothing and is not searched."""
    found = iter(await batcher.search([query for query in queries if query], topk))
    return [next(found) if query else [] for query in queries]


def render(found: Sequence[Sequence[Hit]], scores: bool) -> bytes:
    """The answer's body. Scores change the items, not the nesting (FC-27)."""
    result = [
        [{"document": hit.document, "score": hit.score} if scores else hit.document for hit in hits]
        for hits in found
    ]
    return json.dumps({"result": result}, ensure_ascii=False).encode("utf-8", "replace")


def load_in_background(
    load: Callable[[], Backend],
    loaded: Callable[[Backend], None],
    state: State,
    on_loaded: Callable[[State], None],
) -> None:
    """Run ``load`` in a daemon thread, so that a signal can end the process meanwhile."""
    loop = asyncio.get_running_loop()
    start = time.perf_counter()

    def end(backend: Backend | None, failure: Exception | None) -> None:
        state.load_s = time.perf_counter() - start
        state.failure = failure
        if backend is not None:
            loaded(backend)
        on_loaded(state)

    def run() -> None:
        backend, failure = None, None
        try:
            backend = load()
        except Exception as error:
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(end, backend, failure)

    threading.Thread(target=run, name="load", daemon=True).start()


async def explain_invalid(request: Request, error: Exception) -> Response:
    """422 for a body of the wrong shape: what came, what was expected."""
    assert isinstance(error, RequestValidationError), "registered for this class"
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body") or "body"
    detail = (
        f"{where}: got {first.get('input')!r:.80}, {first['msg'].lower()}; expected "
        '{"queries": ["..."], "topk": 3, "return_scores": true}'
    )
    return JSONResponse({"detail": detail.encode("ascii", "replace").decode()}, 422)
