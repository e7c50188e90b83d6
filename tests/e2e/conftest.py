"""The real parts, made once: a small GeoHop, its FAISS index, a retrieval server."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
for name in ("verl", "vllm", "faiss", "sentence_transformers"):
    pytest.importorskip(name, reason=f"end-to-end tests need {name}; run bash scripts/setup.sh")


def cli(*arguments):
    return [sys.executable, "-m", "search_r1", *arguments]


@dataclass
class Server:
    """A retrieval server in a process of its own."""

    index: Path
    port: int
    process: subprocess.Popen

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def geohop(tmp_path_factory):
    """Folder with corpus.jsonl, train.parquet, test.parquet of 300 cities."""
    from search_r1.data import geohop

    out = tmp_path_factory.mktemp("geohop")
    geohop.build(out, num_cities=300, num_train=200, num_test=24, seed=1, template="bare")
    return out


@pytest.fixture(scope="session")
def index(geohop, tmp_path_factory):
    out = tmp_path_factory.mktemp("index") / "geohop"
    corpus = str(geohop / "corpus.jsonl")
    subprocess.run(cli("index", "--corpus", corpus, "--out", str(out)), check=True, timeout=300)
    return out


@pytest.fixture
def start_server(index):
    """A function that starts a retrieval server and waits until it is ready."""
    started = []

    def start():
        from search_r1.retrieval import probe

        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        command = cli("serve", "--index", str(index), "--port", str(port))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        server = Server(index, port, process)
        started.append(server)
        deadline = time.time() + 120
        while True:
            assert process.poll() is None, "the retrieval server ended at once"
            try:
                probe(server.url, timeout_s=2.0, loading_s=60.0)
                return server
            except Exception:
                assert time.time() < deadline, "the retrieval server is not ready after 120 s"
                time.sleep(0.3)

    yield start
    for server in started:
        server.kill()


@dataclass
class Run:
    """A training script in a process group of its own."""

    process: subprocess.Popen
    out: Path
    log: Path

    @property
    def text(self):
        return self.log.read_text(errors="replace")

    def wait(self, timeout=400):
        return self.process.wait(timeout)

    def wait_for_step(self, step, timeout=400):
        deadline = time.time() + timeout
        while step not in self.steps():
            assert self.process.poll() is None, f"training ended early:\n{self.text[-3000:]}"
            assert time.time() < deadline, f"no step {step} after {timeout} s:\n{self.text[-3000:]}"
            time.sleep(0.3)

    def steps(self):
        """Step -> metrics of this part of the run."""
        path = self.out / "metrics.jsonl"
        if not path.exists():
            return {}
        lines = path.read_text().splitlines()
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        return {r["step"]: r["data"] for r in rows if "tree/leaves" in r["data"]}

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def train(geohop, tmp_path):
    """A function that starts one of the training scripts in miniature on the CPU."""
    runs = []

    def start(script, url, *overrides):
        out = tmp_path / "run"
        out.mkdir(exist_ok=True)
        log = out / "train.log"
        command = [
            "bash", str(ROOT / "scripts" / script),
            f"tree.retriever_url={url}",
            f"data.train_files={geohop}/train.parquet",
            f"data.val_files={geohop}/test.parquet",
            f"trainer.default_local_dir={out}/checkpoints",
            f"tree.record={out}/forests.jsonl",
            *overrides,
        ]  # fmt: skip
        env = os.environ | {"MACHINE": "cpu", "MODEL": "geohop_tiny"}
        with log.open("ab") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=env, start_new_session=True
            )
        runs.append(Run(process, out, log))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.kill()


def ray_processes():
    """Ids of all live Ray processes on this machine."""
    import psutil

    found = set()
    for process in psutil.process_iter(["pid", "name", "cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if "ray::" in words or "raylet" in words or "gcs_server" in words:
            found.add(process.info["pid"])
    return found


@pytest.fixture
def no_ray_left():
    """Fails the test if it leaves Ray processes behind."""
    before = ray_processes()
    yield
    deadline = time.time() + 30
    while left := ray_processes() - before:
        assert time.time() < deadline, f"Ray processes left behind: {sorted(left)}"
        time.sleep(0.5)
