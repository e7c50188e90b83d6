"""The server answers in the shape Search-R1 clients expect, and stays awake while it searches."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import uvicorn

from retrieval_server.app import create_app
from retrieval_server.batching import Batcher
from retrieval_server.build import build_index
from retrieval_server.cli import listen
from retrieval_server.limits import Limits
from retrieval_server.protocols import Hit
from search_r1.retrieval import HttpRetriever, probe

ROWS = [
    {"id": "0", "contents": '"Kelp"\nKelp grows.\nFast.'},
    {"id": "1", "contents": "Kelp grows"},
    {"id": "2", "contents": '"Reef"\nFish.'},
]


class Toy:
    """A backend over ROWS, or one where each query finds the document of its own name."""

    name = "toy"

    def __init__(self, rows=None, seconds=0.0):
        self.rows = rows
        self.seconds = seconds
        self.batches = []

    def __len__(self):
        return len(self.rows or [])

    def search(self, queries, topk):
        self.batches.append((list(queries), topk))
        time.sleep(self.seconds)
        if "bad" in queries:
            raise RuntimeError("bad query")
        if self.rows is None:
            return [[Hit({"id": q, "contents": q}, 1.0)] for q in queries]
        return [[Hit(row, 1.0 - i / 10) for i, row in enumerate(self.rows)][:topk] for _ in queries]


@contextmanager
def running(app):
    """The base URL of ``app`` behind a real uvicorn."""
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def call(url, body=None):
    """Status and parsed body; ``body`` may be bytes."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def url():
    limits = Limits(queries=4, query_chars=50, topk=10, body_bytes=2000)
    with running(create_app(Toy(ROWS), topk=2, limits=limits)) as url:
        yield url


@pytest.mark.parametrize("queries", [[], ["kelp"], ["kelp", "reef", "tide"]])
@pytest.mark.parametrize("scores", [True, False])
def test_there_is_one_list_per_query_with_scores_and_without(url, queries, scores):
    body = {"queries": queries, "topk": 3, "return_scores": scores}
    items = [{"document": row, "score": 1.0 - i / 10} for i, row in enumerate(ROWS)]
    expected = [items if scores else ROWS] * len(queries)
    assert call(f"{url}/retrieve", body) == (200, {"result": expected})


def test_topk_has_the_servers_default_and_may_exceed_the_corpus(url):
    assert [len(r) for r in call(f"{url}/retrieve", {"queries": ["a"]})[1]["result"]] == [2]
    body = {"queries": ["a"], "topk": None}
    assert [len(r) for r in call(f"{url}/retrieve", body)[1]["result"]] == [2]
    assert [
        len(r) for r in call(f"{url}/retrieve", {"queries": ["a"], "topk": 9})[1]["result"]
    ] == [3]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 422, "json"),
        (b'"kelp"', 422, "body: got 'kelp'"),
        ({}, 422, "queries: .*required"),
        ({"queries": "kelp"}, 422, "queries: got 'kelp'"),
        ({"queries": ["kelp", 5]}, 422, r"queries\.1: got 5.*string"),
        ({"queries": ["kelp"], "topk": 0}, 422, "topk: got 0"),
        ({"queries": ["kelp"], "topk": "many \ud800"}, 422, "topk: got"),
        ({"queries": ["kelp"], "topk": 11}, 422, "got topk 11, expected at most 10"),
        ({"queries": ["a"] * 5}, 422, "got 5 queries, expected at most 4"),
        ({"queries": ["a", "b" * 51]}, 422, r"queries\[1\]: got 51 characters.*at most 50"),
        ({"queries": ["a" * 3000]}, 413, "more than 2000 bytes"),
    ],
)
def test_a_request_that_asks_too_much_is_told_what_was_expected(url, body, status, says):
    code, answer = call(f"{url}/retrieve", body)
    assert code == status
    assert re.search(says, answer["detail"], re.IGNORECASE)


def test_hard_queries_are_cleaned_by_rule_and_blank_ones_find_nothing():
    toy = Toy()
    with running(create_app(toy)) as url:
        queries = ["東京で一番高い塔", "kelp \ud83d", "tall\n\x00tower", " \n "]
        status, answer = call(f"{url}/retrieve", {"queries": queries})
    assert status == 200
    assert [len(hits) for hits in answer["result"]] == [1, 1, 1, 0]
    assert toy.batches[0][0] == ["東京で一番高い塔", "kelp \ufffd", "tall  tower"]


def test_health_reports_size_and_backend(url):
    for route in ("healthz", "readyz"):
        status, body = call(f"{url}/{route}")
        assert (status, body["corpus_size"], body["backend"]) == (200, 3, "toy")


def test_while_the_index_loads_the_server_answers_503_and_a_trainer_waits():
    go = threading.Event()

    def load():
        go.wait(20)
        return Toy(ROWS)

    with running(create_app(load=load)) as url:
        assert call(f"{url}/healthz")[0] == call(f"{url}/readyz")[0] == 503
        assert call(f"{url}/retrieve", {"queries": ["a"]})[0] == 503
        threading.Timer(0.3, go.set).start()
        assert probe(url)["corpus_size"] == 3


def test_a_failed_load_is_reported():
    def load():
        raise ValueError("width 8, width 4")

    seen = []
    with running(create_app(load=load, on_loaded=seen.append)) as url:
        while not seen:
            time.sleep(0.01)
        assert call(f"{url}/healthz") == (500, {"status": "failed", "detail": "width 8, width 4"})


def test_eight_parallel_searches_of_a_second_take_two_and_health_answers_meanwhile():
    with running(create_app(Toy(seconds=1.0))) as url, ThreadPoolExecutor(8) as pool:
        start = time.perf_counter()
        asked = [pool.submit(call, f"{url}/retrieve", {"queries": [f"q{i}"]}) for i in range(8)]
        time.sleep(0.2)
        before = time.perf_counter()
        assert call(f"{url}/healthz")[0] == 200
        assert time.perf_counter() - before < 0.5
        ids = [job.result()[1]["result"][0][0]["id"] for job in asked]
        assert time.perf_counter() - start < 2.8
    assert ids == [f"q{i}" for i in range(8)]


async def test_sixty_four_parallel_requests_each_get_their_own_document():
    with running(create_app(Toy(seconds=0.01))) as url:
        async with HttpRetriever(url, max_batch=1) as retriever:
            found = await asyncio.gather(*(retriever.search(f"q{i}", 3) for i in range(64)))
    assert [documents[0].id for documents in found] == [f"q{i}" for i in range(64)]


def test_a_search_that_raises_fails_its_own_request_only():
    toy = Toy(seconds=0.2)
    with running(create_app(toy)) as url, ThreadPoolExecutor(8) as pool:
        queries = ["a", "b", "c", "bad", "d"]
        answers = list(pool.map(lambda q: call(f"{url}/retrieve", {"queries": [q]}), queries))
        assert [status for status, _ in answers] == [200, 200, 200, 500, 200]
        assert "bad query" in answers[3][1]["detail"]


async def test_queries_that_wait_share_one_search_and_equal_ones_are_searched_once():
    toy = Toy(seconds=0.05)
    batcher = Batcher(toy, max_parallel=1)
    queries = ["a", "b", "c", "b", "a", "d"]
    found = await asyncio.gather(*(batcher.search([q], 1) for q in queries))
    assert [hits[0][0].document["id"] for hits in found] == queries
    assert toy.batches == [(["a", "b", "c", "d"], 1)]
    await batcher.search(["a"], 1)
    assert len(toy.batches) == 1
    batcher.close()


async def test_batches_are_bounded_keep_topk_apart_and_old_answers_are_forgotten():
    toy = Toy()
    batcher = Batcher(toy, max_parallel=1, max_batch=2, cache_size=2)
    await asyncio.gather(batcher.search(["a", "b", "c"], 1), batcher.search(["a"], 2))
    assert sorted((len(queries), topk) for queries, topk in toy.batches) == [(1, 1), (1, 2), (2, 1)]
    await batcher.search(["a"], 1)
    assert toy.batches[-1] == (["a"], 1)
    batcher.close()


async def test_long_answers_are_not_kept():
    toy = Toy()
    batcher = Batcher(toy)
    for _ in range(2):
        await batcher.search(["a"], 500)
    assert len(toy.batches) == 2
    batcher.close()


async def test_a_client_that_hangs_up_does_not_take_the_answer_from_others():
    batcher = Batcher(Toy(seconds=0.1))
    first = asyncio.create_task(batcher.search(["a"], 1))
    second = asyncio.create_task(batcher.search(["a"], 1))
    await asyncio.sleep(0.02)
    first.cancel()
    assert (await second)[0][0].document["id"] == "a"
    batcher.close()


# -- the command


def serve(index, port):
    command = [sys.executable, "-m", "retrieval_server", "--index", str(index), "--port", str(port)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def index(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    build_index(corpus, tmp_path / "index", backend="bm25")
    return tmp_path / "index"


def test_a_taken_port_ends_the_command_with_its_number(index):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        process = serve(index, port)
        output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert f"port {port} on 127.0.0.1 is taken" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_server_without_a_traceback(index, number):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = serve(index, port)
    assert process.stdout is not None
    assert "listening" in process.stdout.readline()
    assert probe(f"http://127.0.0.1:{port}", timeout_s=30)["backend"] == "bm25"
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in output


def test_an_index_that_does_not_open_ends_the_command_with_the_reason(index):
    (index / "manifest.json").unlink()
    process = serve(index, 0)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "is no index directory" in output and "Traceback" not in output
