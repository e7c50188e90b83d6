"""What a request may ask for, as pydantic models, and the largest body the server reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from search_r1.wire import MAX_QUERY_CHARS, clean_query


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest request; more is answered with 4xx."""

    queries: int = 4096
    query_chars: int = MAX_QUERY_CHARS
    topk: int = 1000
    body_bytes: int = 32 * 1024 * 1024

    def complaint(self, queries: list[str], topk: int) -> str | None:
        """What is too much, or None."""
        if len(queries) > self.queries:
            return f"got {len(queries)} queries, expected at most {self.queries}; split the request"
        if topk > self.topk:
            return f"got topk {topk}, expected at most {self.topk}"
        for number, query in enumerate(queries):
            if len(query) > self.query_chars:
                return (
                    f"queries[{number}]: got {len(query)} characters, "
                    f"expected at most {self.query_chars}; shorten the query"
                )
        return None


def _clean(value: Any) -> Any:
    return clean_query(value) if isinstance(value, str) else value


class RetrieveRequest(BaseModel):
    """The body of ``POST /retrieve``; keys that are not listed are ignored."""

    queries: list[Annotated[str, BeforeValidator(_clean)]]
    topk: Annotated[int | None, Field(ge=1, strict=True)] = None
    return_scores: bool = False


class ScoredDocument(BaseModel):
    """An item of the answer where scores are on."""

    document: dict[str, Any]
    score: float


class RetrieveAnswer(BaseModel):
    """One list per query; items are bare documents where scores are off."""

    result: list[list[ScoredDocument | dict[str, Any]]]


class BodyLimit:
    """ASGI layer that reads at most ``max_bytes`` of a body and answers 413 to more."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            return await self.app(scope, receive, send)
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.max_bytes:
                detail = f"got a body of more than {self.max_bytes} bytes; split the request"
                answer = JSONResponse({"detail": detail}, 413, {"Connection": "close"})
                return await answer(scope, receive, send)
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        return await self.app(scope, replay, send)
