"""Answers on demand: equal queries are searched once, waiting ones together, off the event loop.

While ``max_parallel`` searches run in worker threads, new queries wait and then go out as one batch
per ``topk``. There is no timer: a query that finds a free thread starts at once. Sibling branches
of a tree repeat queries, so the answers of the last ``cache_size`` queries are kept.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from retrieval_server.protocols import Backend, Hit

Answer = asyncio.Future[list[Hit]]
MAX_KEPT_TOPK = 20
"""Longer answers are shared while they are searched, but not kept: they would fill the memory."""


class Batcher:
    """Searches one backend for many requests; used from one event loop."""

    def __init__(
        self,
        backend: Backend,
        *,
        max_parallel: int = 2,
        max_batch: int = 64,
        cache_size: int = 10_000,
    ) -> None:
        self.backend = backend
        self.max_batch = max_batch
        self.cache_size = cache_size
        self._threads = ThreadPoolExecutor(max_parallel, thread_name_prefix="search")
        self._free = max_parallel
        self._waiting: dict[int, list[str]] = {}
        self._answers: OrderedDict[tuple[str, int], Answer] = OrderedDict()

    async def search(self, queries: list[str], topk: int) -> list[list[Hit]]:
        """One list of hits per query; what the backend raises for a query is raised here."""
        answers = [self._answer(query, topk) for query in queries]
        # shield: a client that hangs up must not take the answer from others
        return await asyncio.gather(*(asyncio.shield(answer) for answer in answers))

    def close(self) -> None:
        """Let running searches end in their threads and start no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _answer(self, query: str, topk: int) -> Answer:
        key = (query, topk)
        if key in self._answers:
            self._answers.move_to_end(key)
            return self._answers[key]
        loop = asyncio.get_running_loop()
        self._answers[key] = answer = loop.create_future()
        self._waiting.setdefault(topk, []).append(query)
        loop.call_soon(
            self._start
        )  # after the other queries of this request, so they share a batch
        return answer

    def _start(self) -> None:
        while self._free and self._waiting:
            topk, queries = next(iter(self._waiting.items()))
            batch, rest = queries[: self.max_batch], queries[self.max_batch :]
            del self._waiting[topk]
            if rest:  # behind the other values of topk
                self._waiting[topk] = rest
            self._free -= 1
            loop = asyncio.get_running_loop()
            run = loop.run_in_executor(self._threads, self._search, batch, topk)
            run.add_done_callback(lambda run, batch=batch, topk=topk: self._end(run, batch, topk))

    def _search(self, queries: list[str], topk: int) -> list[list[Hit] | Exception]:
        try:
            found = self.backend.search(queries, topk)
            if len(found) != len(queries):
                raise RuntimeError(f"{self.backend.name} gave {len(found)} of {len(queries)} lists")
            return [hits[:topk] for hits in found]
        except Exception as error:
            if len(queries) == 1:
                return [error]
        # one bad query must fail alone
        return [answer for query in queries for answer in self._search([query], topk)]

    def _end(self, run: asyncio.Future, batch: list[str], topk: int) -> None:
        self._free += 1
        if not run.cancelled():
            for query, found in zip(batch, run.result(), strict=True):
                self._settle((query, topk), found)
        while len(self._answers) > self.cache_size and next(iter(self._answers.values())).done():
            self._answers.popitem(last=False)
        self._start()

    def _settle(self, key: tuple[str, int], found: list[Hit] | Exception) -> None:
        answer = self._answers[key]
        if isinstance(found, Exception):
            del self._answers[key]  # the next request tries again
            answer.set_exception(found)
            answer.exception()  # marks it as seen even if every client hung up
            return
        answer.set_result(found)
        if key[1] > MAX_KEPT_TOPK:
            del self._answers[key]
