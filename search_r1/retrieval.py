"""HTTP client of the retrieval server: pooled, batched, retried, cached, with typed errors.

Searches that start in one tick of the event loop and share ``topk`` travel in one request. A
request is tried again after a connection error, a timeout, 429, 5xx or a body that is no answer;
other 4xx are final. Where the server refuses or fails a batch, its queries are asked one by one,
so that one bad query costs only itself. However often a query is tried, it is one search.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from search_r1.protocols import RetrieverError
from search_r1.types import Document
from search_r1.wire import MAX_QUERY_CHARS, clean_query, parse_answer

if TYPE_CHECKING:
    import aiohttp

FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 8.0


class RetrieverUnavailable(RetrieverError):
    """No answer after all tries. ``status`` is the last HTTP status, None for a dead connection."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class RetrieverRejected(RetrieverError):
    """The server refused the request (4xx); asking again would not help."""


class RetrieverBadResponse(RetrieverUnavailable):
    """The server kept answering with something that is no answer."""


class _TryAgain(Exception):
    """A failed try; ``kind`` is raised if it was the last one."""

    def __init__(
        self,
        message: str,
        *,
        kind: type[RetrieverUnavailable] = RetrieverUnavailable,
        status: int | None = None,
        wait_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.wait_s = wait_s


_Waiting = tuple[str, "asyncio.Future[list[Document]]"]


class HttpRetriever:
    """Implements :class:`search_r1.protocols.Retriever` over ``POST {url}/retrieve``.

    Args:
        url: base URL of the server; a trailing ``/retrieve`` is accepted.
        timeout_s: limit of one request, seconds.
        retries: further tries after the first.
        deadline_s: limit of a search with all its tries, seconds.
        cache_size: answers kept, least recently used out first; 0 keeps none.
        max_batch: queries per request.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        deadline_s: float = 120.0,
        cache_size: int = 10_000,
        max_batch: int = 64,
    ) -> None:
        self.url = base_url(url)
        self.timeout_s = timeout_s
        self.retries = retries
        self.deadline_s = deadline_s
        self.cache_size = cache_size
        self.max_batch = max_batch
        self._cache: OrderedDict[tuple[str, int], list[Document]] = OrderedDict()
        self._waiting: dict[int, list[_Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._jitter = random.Random()

    async def search(self, query: str, topk: int) -> list[Document]:
        """At most ``topk`` documents, best first. Raises :class:`RetrieverError`.

        The query is cleaned (:func:`search_r1.wire.clean_query`) and cut to
        :data:`search_r1.wire.MAX_QUERY_CHARS`.
        """
        query = clean_query(query)[:MAX_QUERY_CHARS]
        if (query, topk) in self._cache:
            self._cache.move_to_end((query, topk))
            return list(self._cache[query, topk])
        loop = asyncio.get_running_loop()
        self._enter(loop)
        future: asyncio.Future[list[Document]] = loop.create_future()
        waiting = self._waiting.setdefault(topk, [])
        waiting.append((query, future))
        if len(waiting) == 1:
            loop.call_soon(self._send, topk)
        documents = await future
        self._remember((query, topk), documents)
        return list(documents)

    async def close(self) -> None:
        """Close the connections; a later search opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> HttpRetriever:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        # a session belongs to one loop; whoever calls asyncio.run() twice needs a second one
        if self._session is None or self._loop is not loop:
            import aiohttp

            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64))
            self._loop = loop
            self._waiting = {}

    def _remember(self, key: tuple[str, int], documents: list[Document]) -> None:
        if self.cache_size > 0:
            self._cache[key] = documents
            if len(self._cache) > self.cache_size:
                self._cache.popitem(last=False)

    def _send(self, topk: int) -> None:
        waiting = self._waiting.pop(topk, [])
        for start in range(0, len(waiting), self.max_batch):
            task = asyncio.ensure_future(
                self._answer(waiting[start : start + self.max_batch], topk)
            )
            self._tasks.add(task)  # the loop itself holds tasks weakly
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, waiting: Sequence[_Waiting], topk: int) -> None:
        """Fill the futures of one batch; equal queries are sent once."""
        queries = list(dict.fromkeys(query for query, _ in waiting))
        try:
            answers = await self._ask_each(queries, topk)
        except Exception as error:  # a fault of ours reaches the callers, as everything does
            answers = [error] * len(queries)
        by_query = dict(zip(queries, answers, strict=True))
        for query, future in waiting:
            answer = by_query[query]
            if future.done():  # its caller was cancelled
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    async def _ask_each(
        self, queries: list[str], topk: int
    ) -> list[list[Document]] | list[list[Document] | BaseException]:
        deadline = time.monotonic() + self.deadline_s
        try:
            return await self._ask(queries, topk, deadline)
        except (RetrieverRejected, RetrieverUnavailable) as error:
            server_is_up = isinstance(error, RetrieverRejected) or error.status == 500
            if len(queries) == 1 or not server_is_up:
                raise
        singles = (self._ask([query], topk, deadline) for query in queries)
        results = await asyncio.gather(*singles, return_exceptions=True)
        return [r if isinstance(r, BaseException) else r[0] for r in results]

    async def _ask(self, queries: list[str], topk: int, deadline: float) -> list[list[Document]]:
        """One request with its retries, until ``deadline`` (monotonic seconds)."""
        for attempt in range(self.retries + 1):
            try:
                return await self._try_once(queries, topk, deadline - time.monotonic())
            except _TryAgain as failed:
                pause = min(FIRST_BACKOFF_S * 2**attempt, MAX_BACKOFF_S)
                pause = max(pause * self._jitter.uniform(0.5, 1.0), failed.wait_s)
                if attempt == self.retries or time.monotonic() + pause >= deadline:
                    gave_up = f"gave up after {attempt + 1} tries (deadline {self.deadline_s:g} s)"
                    raise failed.kind(f"{failed}; {gave_up}", failed.status) from failed.__cause__
                await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    async def _try_once(self, queries: list[str], topk: int, left_s: float) -> list[list[Document]]:
        import aiohttp

        assert self._session is not None, "search() opens the session"
        request = {"queries": queries, "topk": topk, "return_scores": True}
        limit_s = max(min(self.timeout_s, left_s), 0.001)
        try:
            async with self._session.post(
                f"{self.url}/retrieve",
                json=request,
                timeout=aiohttp.ClientTimeout(total=limit_s),
            ) as response:
                status, headers, body = response.status, response.headers, await response.read()
        except TimeoutError as error:
            raise _TryAgain(f"{self.url} did not answer within {limit_s:.1f} s") from error
        except aiohttp.ClientError as error:
            raise _TryAgain(f"{self.url} cannot be reached: {error}") from error
        said = f"{self.url} answered {status}: {body[:300].decode('utf-8', 'replace')!r}"
        if status == 429 or status >= 500:
            raise _TryAgain(said, status=status, wait_s=_seconds(headers.get("Retry-After")))
        if status >= 300:
            raise RetrieverRejected(f"{said}; request: {len(queries)} queries, topk {topk}")
        try:
            return parse_answer(json.loads(body), len(queries))
        except ValueError as error:
            raise _TryAgain(f"{said}: {error}", kind=RetrieverBadResponse, status=status) from error


def _seconds(value: str | None) -> float:
    """The header's seconds; 0 where it is missing or a date, which the backoff then covers."""
    return float(value) if value is not None and value.isdecimal() else 0.0


def base_url(url: str) -> str:
    """``url`` without a trailing slash or ``/retrieve``; ValueError where it is no http URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"got the retriever URL {url!r}, expected http://HOST:PORT")
    return url.rstrip("/").removesuffix("/retrieve")


def probe(url: str, timeout_s: float = 5.0, *, loading_s: float = 600.0) -> dict[str, Any]:
    """What ``GET {url}/healthz`` reports, waiting up to ``loading_s`` while the server loads (503).

    A server without that route (404) is asked for one document instead. Raises
    :class:`RetrieverUnavailable`, whose message has the command that starts a server.
    """
    url = base_url(url)
    deadline = time.monotonic() + loading_s
    while True:
        try:
            return _fetch(f"{url}/healthz", timeout_s)
        except urllib.error.HTTPError as error:
            said = f"answered {error.code}: {error.read(300).decode('utf-8', 'replace')!r}"
            if error.code == 404:
                return _probe_by_search(url, timeout_s)
            if error.code != 503 or time.monotonic() >= deadline:
                raise _unavailable(url, said) from error
        except (OSError, ValueError) as error:
            raise _unavailable(url, f"does not answer: {error}") from error
        time.sleep(min(0.5, loading_s))


def _probe_by_search(url: str, timeout_s: float) -> dict[str, Any]:
    request = {"queries": ["test"], "topk": 1, "return_scores": True}
    try:
        parse_answer(_fetch(f"{url}/retrieve", timeout_s, request), 1)
    except (OSError, ValueError) as error:
        raise _unavailable(url, f"has no /healthz, and /retrieve fails: {error}") from error
    return {"status": "ok"}


def _fetch(url: str, timeout_s: float, request: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if request is None else json.dumps(request).encode()
    headers = {"Content-Type": "application/json"}
    # like the client, go straight to the server: a proxy cannot reach a loopback address
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, data, headers), timeout=timeout_s) as response:
        return json.loads(response.read())


def _unavailable(url: str, said: str) -> RetrieverUnavailable:
    port = urlsplit(url).port or 80
    return RetrieverUnavailable(
        f"the retrieval server {url} {said}; expected a loaded server. "
        f"Start one with: tree-grpo serve --index DIR --port {port}"
    )
