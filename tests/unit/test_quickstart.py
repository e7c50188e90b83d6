"""The quickstart's own parts: metrics over resumes, processes that end, an honest summary."""

import json
import sys
import time

import pytest

pytest.importorskip("psutil")
pytest.importorskip("omegaconf")

from search_r1.record import write_forest
from search_r1.testing import forest
from verl_tree_grpo.demo import quickstart, report
from verl_tree_grpo.demo.progress import MemoryWatch, Metrics, describe, read_metrics
from verl_tree_grpo.run import keep_earlier


def write_rows(path, *rows):
    path.write_text("".join(json.dumps({"step": s, "data": d}) + "\n" for s, d in rows))


def training(**changed):
    row = {
        "tree/reward_mean": 0.5,
        "tree/em": 0.4,
        "tree/mixed_prompts": 0.5,
        "tree/generated_tokens": 1000.0,
        "tree/tool_calls": 10.0,
        "tree/leaves": 12.0,
        "tree/prompts": 2.0,
        "tree/error_leaves": 0.0,
        "tree/cached_tokens": 800.0,
        "tree/prompt_tokens": 1000.0,
        "tree/served_block_fraction": 0.95,
        "training/rollout_probs_diff_mean": 1e-5,
    }
    return row | changed


def validation(em, hops):
    row = {"val-tree/geohop/em": em, "val-tree/geohop/questions": 4.0}
    return row | {f"val-tree/geohop/{k}/em": v for k, v in hops.items()}


def test_a_line_that_is_still_being_written_is_left_for_the_next_look(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    assert metrics.new_rows() == []
    path.write_text('{"step": 1, "data": {}}\n{"step": 2, "da')
    assert [r["step"] for r in metrics.new_rows()] == [1]
    with path.open("a") as file:
        file.write('ta": {}}\n')
    assert [r["step"] for r in metrics.new_rows()] == [2]


def test_a_resumed_run_keeps_the_metrics_of_its_earlier_parts(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_rows(path, (1, {"a": 1}), (2, {"a": 2}))
    assert keep_earlier(path) == tmp_path / "metrics.1.jsonl"
    write_rows(path, (2, {"a": 20}))
    assert keep_earlier(path) == tmp_path / "metrics.2.jsonl"
    write_rows(path, (3, {"a": 3}))
    assert read_metrics(path) == {1: {"a": 1}, 2: {"a": 20}, 3: {"a": 3}}


def test_an_empty_metrics_file_is_not_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.touch()
    assert keep_earlier(path) is None


def test_a_step_and_a_validation_are_described_in_one_line():
    line = describe(3, training() | validation(0.25, {"1": 0.5}), 12.0)
    assert "step   3" in line and "reward 0.50" in line and "held-out EM 25.0%" in line


def test_the_summary_adds_up_steps_and_compares_first_and_last_validation(tmp_path):
    (tmp_path / "config.yaml").write_text("tree: {seed: 7}\n")
    rows = {
        0: validation(0.25, {"1": 0.5, "2": 0.0}),
        1: training(),
        2: training() | validation(0.75, {"1": 1.0, "2": 0.5}),
    }
    summary = report.summarise(rows, tmp_path)
    assert (summary["em_before"], summary["em_after"]) == (0.25, 0.75)
    assert summary["em_by_hops_after"] == {"1": 1.0, "2": 0.5}
    assert summary["generated_tokens"] == 2000 and summary["train_steps"] == 2
    assert summary["leaves_per_prompt"] == 6.0
    assert summary["cached_prefix_fraction"] == 0.8
    assert summary["seed"] == 7


# FC-44
def test_a_run_that_trained_no_step_has_no_summary(tmp_path):
    with pytest.raises(ValueError, match="0 training steps"):
        report.summarise({0: validation(0.2, {})}, tmp_path)


def test_the_sample_tree_is_the_last_whose_leaves_differ(tmp_path):
    path = tmp_path / "forests.jsonl"
    for rewards in ([[1, 0]], [[0.25, 0.5]], [[1, 1]]):
        write_forest(path, forest(rewards=rewards), step=1)
    assert report.sample_forest(path).rewards() == [[0.25, 0.5]]


def test_a_finished_run_is_moved_aside_not_lost(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "x").write_text("new")
    (tmp_path / "previous" / "checkpoints").mkdir(parents=True)
    quickstart.archive(tmp_path, "checkpoints")
    assert (tmp_path / "previous" / "checkpoints" / "x").read_text() == "new"
    assert not (tmp_path / "checkpoints").exists()


def test_stop_ends_a_process_that_ignores_the_polite_signals(tmp_path, monkeypatch):
    import subprocess

    monkeypatch.setattr(quickstart, "STOP_S", 0.3)
    code = (
        "import signal, time\n"
        "for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\n"
        "print('up', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout.readline() == b"up\n"
    started = time.time()
    quickstart.stop(process)
    assert process.poll() is not None and time.time() - started < 5


def test_memory_is_watched_while_the_block_runs():
    with MemoryWatch(every_s=0.01) as memory:
        time.sleep(0.1)
    assert 0.01 < memory.peak_gib < 64
