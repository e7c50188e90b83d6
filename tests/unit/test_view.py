"""What a person sees: the terminal drawing and the learning curve."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from search_r1.testing import ANSWER, SEARCH, forest, step
from search_r1.tree import ROOT, Forest
from search_r1.types import StopReason
from search_r1.view.plots import learning_curve, read_rows
from search_r1.view.terminal import draw


def drawn(grown: Forest, width: int = 200, estimator: str = "tree") -> list[str]:
    file = io.StringIO()
    draw(grown, Console(file=file, width=width, color_system=None), estimator)
    return file.getvalue().splitlines()


def test_the_question_and_its_golden_answers_head_the_drawing():
    assert drawn(forest(rewards=[[1]]))[0] == "What is the capital of Norway?  gold: Oslo"


def test_a_leaf_shows_its_reward_its_advantage_and_its_answer():
    lines = drawn(forest(rewards=[[1, 0.2, 0.2], [0.2, 0.2, 0.2]]))
    answers = [line for line in lines if "answer Oslo" in line]
    assert len(answers) == 6
    assert "R 1.00 A +3.20" in answers[0] and "R 0.20 A -0.99" in answers[1]
    assert "2." in answers[0] and f"{len(ANSWER)}+0 tokens" in answers[0]


def test_the_estimator_can_be_chosen():
    lines = drawn(forest(rewards=[[1, 0.2, 0.2], [0.2, 0.2, 0.2]]), estimator="intra")
    assert any("R 1.00 A +1.15" in line for line in lines)
    with pytest.raises(ValueError, match="gae"):
        drawn(forest(rewards=[[1]]), estimator="gae")


def test_a_search_shows_its_query_its_documents_and_how_many_leaves_share_it():
    (line,) = [x for x in drawn(forest(rewards=[[1, 0, 0]])) if "search capital" in x]
    assert "1. search capital of Norway  -> Norway" in line
    assert "shared by 3 leaves" in line
    assert "shared" not in "".join(drawn(forest(rewards=[[1], [0]])))


def test_a_node_counts_the_leaves_below_its_children_too():
    grown = forest(rewards=[[]])
    deeper = grown.trees[0].attach(1, [step(SEARCH)])[0]
    for _ in range(2):
        grown.trees[0].attach(deeper, [step(ANSWER, stop=StopReason.ANSWERED)])
    assert sum("shared by 2 leaves" in line for line in drawn(grown)) == 2


def test_a_failed_leaf_shows_why_and_has_no_score():
    (line,) = [x for x in drawn(forest(rewards=[[1, 0, None]])) if "failed" in x]
    assert "invalid" not in line
    assert "R - A - " in line and "retriever failed: connection refused" in line


def test_a_leaf_that_was_not_kept_is_marked_and_the_others_keep_their_own_advantage():
    grown = forest(rewards=[[0.5, 1, 0]])
    grown.trees[0].nodes[grown.trees[0].leaves[0]].kept = False
    lines = [line for line in drawn(grown) if "answer" in line]
    assert "R 0.50 not kept" in lines[0]
    assert "R 1.00 A +1.41" in lines[1]
    assert any("2 of 3 leaves kept" in line for line in drawn(grown))


def test_a_truncated_leaf_says_which_limit_ended_it():
    grown = forest(rewards=[[1]])
    grown.trees[0].attach(ROOT, [step(SEARCH, stop=StopReason.MAX_TURNS)])
    assert any("stopped: max_turns" in line for line in drawn(grown))


def test_hostile_text_stays_text():
    grown = forest(rewards=[[1]])
    nasty = step("<think>t</think><search>[red]x[/red]\x1b[2J\nnext</search>")
    leaf = step("<answer>[/]</answer>", stop=StopReason.ANSWERED)
    grown.trees[0].attach(ROOT, [nasty, leaf])
    lines = drawn(grown)
    assert any("[red]x[/red] [2J next" in line for line in lines)
    assert any("answer [/]" in line for line in lines)
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("width", [20, 40, 80])
def test_no_line_is_wider_than_the_console_and_no_node_takes_two(width):
    grown = forest(rewards=[[1, 0, None], [1]])
    query = replace(grown.query, question="Why? " * 50)
    narrow, wide = drawn(Forest(query, grown.trees), width), drawn(Forest(query, grown.trees), 500)
    assert max(map(len, narrow)) <= width
    assert len(narrow) == len(wide)


ROWS = [{"step": s, "reward": s / 10, "em": s / 20, "tokens": 100 * s} for s in range(1, 4)]
VERL_ROWS = [
    {"step": s, "data": {"tree/reward_mean": 0.1, "tree/em": 0.2, "tree/generated_tokens": 9.0}}
    for s in range(3)
] + [{"step": 2, "data": {"val-tree/nq/em": 0.4, "val-tree/nq/f1": 0.5}}]


@pytest.fixture
def figures(monkeypatch):
    """The figures that get saved, so that their contents can be looked at."""
    from matplotlib.figure import Figure

    saved, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (saved.append(self), save(self, *a, **k))
    )
    return saved


def lines_of(figure):
    upper, lower = figure.axes
    named = {line.get_label(): line.get_xydata().tolist() for line in upper.lines}
    return named, lower.lines[0].get_xydata().tolist()


def test_the_curve_shows_rewards_above_and_tokens_below(tmp_path, figures):
    not_measured = {"step": 4, "reward": None}
    learning_curve([*ROWS[::-1], not_measured], tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    scores, tokens = lines_of(figures[0])
    assert scores["training reward"] == [[1, 0.1], [2, 0.2], [3, 0.3]]
    assert scores["training EM"] == [[1, 0.05], [2, 0.1], [3, 0.15]]
    assert tokens == [[1, 100], [2, 200], [3, 300]]
    upper, lower = figures[0].axes
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("reward, EM", "tokens per step")
    assert lower.get_xlabel() == "training step"


def test_the_curve_reads_verls_metrics_file(tmp_path, figures):
    path = tmp_path / "m.jsonl"
    path.write_text("\n".join(map(json.dumps, VERL_ROWS)))
    learning_curve(path, tmp_path / "c.png")
    scores, tokens = lines_of(figures[0])
    assert set(scores) == {"training reward", "training EM", "validation EM, nq"}
    assert scores["validation EM, nq"] == [[2, 0.4]]
    assert tokens == [[0, 9], [1, 9], [2, 9]]


def test_metrics_without_anything_to_draw_are_an_error_and_leave_no_file(tmp_path):
    with pytest.raises(ValueError, match="tree/reward_mean"):
        learning_curve([{"step": 1, "lr": 0.1}], tmp_path / "c.png")
    assert not (tmp_path / "c.png").exists()


@pytest.mark.parametrize("line", ["{", "[1]", '{"reward": 1}'])
def test_a_bad_metrics_line_is_named(tmp_path, line):
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(ValueError, match=r"m\.jsonl:2"):
        list(read_rows(path))
