"""A retriever that fails must not end training, and what it says must arrive as documents."""

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

import search_r1.retrieval as client
from search_r1.retrieval import (
    HttpRetriever,
    RetrieverBadResponse,
    RetrieverRejected,
    RetrieverUnavailable,
    probe,
)
from search_r1.types import Document
from search_r1.wire import (
    MAX_QUERY_CHARS,
    clean_query,
    join_contents,
    parse_answer,
    parse_document,
    split_contents,
)


@pytest.fixture(autouse=True)
def fast_backoff(monkeypatch):
    monkeypatch.setattr(client, "FIRST_BACKOFF_S", 0.01)


def found(request):
    """The answer of a server where each query finds the document of its own name."""
    rows = [{"id": q, "contents": f'"{q}"\nAbout {q}.'} for q in request["queries"]]
    return web.json_response({"result": [[{"document": row, "score": 0.5}] for row in rows]})


@asynccontextmanager
async def serving(*script, **options):
    """A client of a server that plays ``script``, one function a call, the last one forever."""
    calls = []

    async def retrieve(http_request):
        calls.append(json.loads(await http_request.read()))
        play = script[min(len(calls), len(script)) - 1]
        answer = play(calls[-1])
        return await answer if asyncio.iscoroutine(answer) else answer

    app = web.Application()
    app.router.add_post("/retrieve", retrieve)
    async with TestServer(app) as server, HttpRetriever(str(server.make_url("")), **options) as it:
        it.calls = calls
        yield it


def status(code, text="<html>broken</html>", **headers):
    return lambda request: web.Response(status=code, text=text, headers=headers)


async def hang(request):
    await asyncio.sleep(5)
    return found(request)


async def test_a_query_finds_documents_with_title_text_and_score():
    async with serving(found) as retriever:
        assert await retriever.search("kelp", 3) == [Document("kelp", "kelp", "About kelp.", 0.5)]
        assert retriever.calls == [{"queries": ["kelp"], "topk": 3, "return_scores": True}]


async def test_after_html_500_and_a_hanging_call_the_third_try_answers():
    async with serving(status(500), hang, found, timeout_s=0.2) as retriever:
        assert [d.id for d in await retriever.search("kelp", 1)] == ["kelp"]
        assert len(retriever.calls) == 3


async def test_a_server_that_always_fails_is_reported_after_the_last_try():
    async with serving(status(500), retries=2) as retriever:
        with pytest.raises(RetrieverUnavailable, match=r"500.*broken.*after 3 tries") as caught:
            await retriever.search("kelp", 1)
        assert caught.value.status == 500
        assert len(retriever.calls) == 3


async def test_the_deadline_ends_a_search_before_its_retries_do():
    async with serving(hang, timeout_s=0.2, deadline_s=0.5, retries=100) as retriever:
        async with asyncio.timeout(2):
            with pytest.raises(RetrieverUnavailable, match="did not answer"):
                await retriever.search("kelp", 1)


async def test_a_dead_server_is_unavailable():
    retriever = HttpRetriever("http://127.0.0.1:9", retries=1)
    with pytest.raises(RetrieverUnavailable, match=r"127\.0\.0\.1:9 cannot be reached"):
        await retriever.search("kelp", 1)
    await retriever.close()


async def test_html_with_status_200_is_tried_again_and_then_a_bad_response():
    async with serving(status(200), found) as retriever:
        assert await retriever.search("kelp", 1)
    async with serving(status(200), retries=1) as retriever:
        with pytest.raises(RetrieverBadResponse, match="html"):
            await retriever.search("kelp", 1)


async def test_a_refused_request_is_not_tried_again():
    async with serving(status(422, '{"detail": "topk"}')) as retriever:
        with pytest.raises(RetrieverRejected, match=r"422.*topk"):
            await retriever.search("kelp", 1)
        assert len(retriever.calls) == 1


async def test_retry_after_is_honoured():
    async with serving(status(429, "slow", **{"Retry-After": "1"}), found) as retriever:
        start = asyncio.get_running_loop().time()
        await retriever.search("kelp", 1)
        assert asyncio.get_running_loop().time() - start >= 1.0


async def test_searches_of_one_tick_travel_in_one_request_and_equal_ones_once():
    async with serving(found) as retriever:
        queries = ["kelp", "reef", "kelp", "tide"]
        answers = await asyncio.gather(*(retriever.search(q, 3) for q in queries))
        assert [a[0].id for a in answers] == queries
        assert [call["queries"] for call in retriever.calls] == [["kelp", "reef", "tide"]]


async def test_searches_with_different_topk_do_not_share_a_request():
    async with serving(found) as retriever:
        await asyncio.gather(retriever.search("kelp", 1), retriever.search("kelp", 2))
        assert sorted(call["topk"] for call in retriever.calls) == [1, 2]


async def test_a_large_tick_is_split_into_requests_of_bounded_size():
    async with serving(found, max_batch=4) as retriever:
        await asyncio.gather(*(retriever.search(f"q{i}", 1) for i in range(10)))
        assert sorted(len(call["queries"]) for call in retriever.calls) == [2, 4, 4]


@pytest.mark.parametrize("code", [422, 500])
async def test_one_bad_query_in_a_batch_of_eight_fails_alone(code):
    def picky(request):
        return status(code)(request) if "bad" in request["queries"] else found(request)

    async with serving(picky, retries=1) as retriever:
        queries = [*(f"q{i}" for i in range(7)), "bad"]
        searches = (retriever.search(q, 1) for q in queries)
        *good, bad = await asyncio.gather(*searches, return_exceptions=True)
        assert [a[0].id for a in good] == queries[:7]
        assert isinstance(bad, RetrieverRejected if code == 422 else RetrieverUnavailable)


async def test_a_cancelled_search_leaves_its_siblings_alone():
    async with serving(found) as retriever:
        first = asyncio.create_task(retriever.search("kelp", 1))
        second = asyncio.create_task(retriever.search("kelp", 1))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second)[0].id == "kelp"


async def test_a_repeated_query_is_answered_from_the_cache_and_failures_are_not_kept():
    async with serving(status(422), found) as retriever:
        with pytest.raises(RetrieverRejected):
            await retriever.search("kelp", 1)
        first = await retriever.search("kelp", 1)
        first.clear()  # the caller owns the list
        assert len(await retriever.search("kelp", 1)) == 1
        assert len(retriever.calls) == 2


async def test_the_cache_forgets_the_least_recently_used_query():
    async with serving(found, cache_size=2) as retriever:
        for query in ("a", "b", "a", "c", "a", "b"):
            await retriever.search(query, 1)
        assert [call["queries"][0] for call in retriever.calls] == ["a", "b", "c", "b"]


async def test_hard_queries_reach_the_server_as_valid_text():
    async with serving(found) as retriever:
        for query in ("東京で一番高い塔", "kelp \ud83d", "x" * 100_000):
            await retriever.search(query, 1)
        sent = [call["queries"][0] for call in retriever.calls]
        assert sent == ["東京で一番高い塔", "kelp \ufffd", "x" * MAX_QUERY_CHARS]


def test_one_client_may_serve_two_event_loops():
    async def ask(retriever, server_answers):
        async with serving(server_answers) as other:
            retriever.url = other.url
            return await retriever.search("kelp", 1)

    retriever = HttpRetriever("http://127.0.0.1:9", cache_size=0)
    assert asyncio.run(ask(retriever, found)) == asyncio.run(ask(retriever, found))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", ""])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match="expected http://HOST:PORT"):
        HttpRetriever(url)


def test_the_url_of_search_r1_configurations_is_accepted():
    assert (
        HttpRetriever("http://h:1/retrieve").url == HttpRetriever("http://h:1/").url == "http://h:1"
    )


# -- what goes over the wire


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (
            {"id": "0", "contents": '"Kelp"\nKelp grows.\nFast.'},
            Document("0", "Kelp", "Kelp grows.\nFast."),
        ),
        ({"id": "1", "contents": "Kelp grows"}, Document("1", "", "Kelp grows")),
        ({"id": "2", "title": "Reef", "text": "Fish."}, Document("2", "Reef", "Fish.")),
        (
            {"document": {"id": 3, "contents": '"The "Big" Reef"\nFish.'}, "score": 1},
            Document("3", 'The "Big" Reef', "Fish.", 1.0),
        ),
    ],
)
def test_each_known_shape_of_an_item_is_a_document(item, expected):
    assert parse_document(item) == expected


@pytest.mark.parametrize(
    "body",
    [None, [], {}, {"result": None}, {"result": []}, {"result": [{}]}, {"result": [["text"]]},
     {"result": [[{"id": "0"}]]}, {"result": [[{"document": None}]]}],
)  # fmt: skip
def test_a_body_of_another_shape_is_refused(body):
    with pytest.raises(ValueError, match="got"):
        parse_answer(body, 1)


@given(st.text(st.characters(exclude_characters="\n")).map(str.strip), st.text())
def test_title_and_text_survive_the_way_through_contents(title, text):
    assert split_contents(join_contents(title, text)) == (title, text)


@given(st.text(st.characters(codec=None, categories=None)))
def test_a_clean_query_is_utf8_without_control_characters_and_cleaning_it_again_is_idle(text):
    clean = clean_query(text)
    assert clean.encode("utf-8").decode() == clean == clean_query(clean)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in clean)


# -- the check before training


async def health(*script):
    """A server whose /healthz plays ``script``, each a status and body."""
    calls = []

    async def healthz(http_request):
        calls.append(http_request)
        code, body = script[min(len(calls), len(script)) - 1]
        return web.json_response(body, status=code)

    async def retrieve(http_request):
        return found(await http_request.json())

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_post("/retrieve", retrieve)
    server = TestServer(app)
    await server.start_server()
    return server


async def test_the_probe_waits_while_the_server_loads():
    server = await health((503, {"status": "loading"}), (200, {"status": "ok", "corpus_size": 3}))
    assert (await asyncio.to_thread(probe, str(server.make_url(""))))["corpus_size"] == 3
    await server.close()


async def test_the_probe_gives_up_on_a_server_that_keeps_loading():
    server = await health((503, {"status": "loading"}))
    with pytest.raises(RetrieverUnavailable, match="loading"):
        await asyncio.to_thread(probe, str(server.make_url("")), loading_s=0.2)
    await server.close()


async def test_the_probe_accepts_a_server_without_a_health_route():
    server = await health((404, {}))
    assert await asyncio.to_thread(probe, str(server.make_url(""))) == {"status": "ok"}
    await server.close()


def test_the_probe_names_the_url_and_the_command_that_starts_a_server():
    with pytest.raises(RetrieverUnavailable) as caught:
        probe("http://127.0.0.1:9", timeout_s=1)
    assert "http://127.0.0.1:9" in str(caught.value)
    assert "tree-grpo serve --index DIR --port 9" in str(caught.value)


def test_importing_the_client_does_not_import_aiohttp():
    code = "import sys, search_r1.retrieval; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
