"""Forests survive the disk unchanged, and damage is named, never hidden."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_r1.ledger import Cost
from search_r1.record import Record, TornLineWarning, read_forests, write_forest
from search_r1.testing import forest
from search_r1.tree import Forest, Tree
from search_r1.types import Action, ActionKind, Document, Failure, Query, Reward, Step, StopReason

text = st.text(max_size=8)
floats = st.floats(allow_nan=False, width=64)
ids = st.lists(st.integers(0, 200_000), max_size=4).map(tuple)
json_data = st.dictionaries(
    text, st.none() | st.booleans() | floats | text | st.lists(text), max_size=2
)


@st.composite
def steps(draw, stop):
    token_ids = draw(ids)
    return Step(
        token_ids=token_ids,
        logprobs=tuple(draw(floats) for _ in token_ids),
        text=draw(text),
        action=Action(draw(st.sampled_from(ActionKind)), draw(text)),
        observation_ids=draw(ids),
        observation=draw(text),
        documents=tuple(
            draw(st.lists(st.builds(Document, text, text, text, st.none() | floats), max_size=2))
        ),
        cost=draw(st.builds(Cost, st.integers(0, 9), tool_s=floats)),
        stop=stop,
        failure=draw(st.none() | st.builds(Failure, text, text)),
        weight_version=draw(st.none() | st.integers(0, 9)),
    )


@st.composite
def trees(draw):
    tree = Tree(draw(ids))
    for _ in range(draw(st.integers(0, 3))):
        parent = draw(st.sampled_from(tree.expandable))
        branch = [draw(steps(None)) for _ in range(draw(st.integers(0, 2)))]
        leaf = tree.attach(parent, [*branch, draw(steps(draw(st.sampled_from(StopReason))))])[-1]
        metrics = st.dictionaries(text, floats, max_size=2)
        tree.nodes[leaf].reward = draw(st.none() | st.builds(Reward, floats, metrics))
        tree.nodes[leaf].kept = draw(st.booleans())
    return tree


queries = st.builds(Query, text, text, ids, st.lists(text).map(tuple), text, json_data)
forests = st.builds(Forest, queries, st.lists(trees(), max_size=2))


@settings(max_examples=25)
@given(st.lists(st.tuples(forests, st.none() | st.integers(0, 9)), max_size=2))
def test_reading_gives_back_what_was_written(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("record") / "forests.jsonl"
    path.touch()
    for grown, step in written:
        write_forest(path, grown, step=step)
    assert list(read_forests(path)) == [Record(step, grown) for grown, step in written]


def test_a_recorded_leaf_is_the_same_training_row(tmp_path):
    grown = forest(rewards=[[1, 0, None], [0.2]])
    write_forest(tmp_path / "new" / "f.jsonl", grown, step=3)
    (record,) = read_forests(tmp_path / "new" / "f.jsonl")
    assert record.step == 3
    assert record.forest.rewards() == [[1, 0, None], [0.2]]
    for tree, leaf in grown.leaves():
        row = record.forest.trees[tree].trajectory(leaf)
        assert row == grown.trees[tree].trajectory(leaf)
    assert record.forest.trees[0].nodes[1].children == [2, 3, 4]


def test_what_json_has_no_name_for_still_comes_back(tmp_path):
    grown = forest(rewards=[[math.nan, math.inf]])
    odd = Query(
        "u", "lone \ud800 surrogate\u2028\n", (), extra={"index": np.int64(3), "a": np.arange(2)}
    )
    write_forest(tmp_path / "f.jsonl", Forest(odd, grown.trees))
    ((_, read),) = read_forests(tmp_path / "f.jsonl")
    assert read.query.question == odd.question
    assert read.query.extra == {"index": 3, "a": [0, 1]}
    assert math.isnan(read.rewards()[0][0]) and read.rewards()[0][1] == math.inf


def test_extra_data_that_cannot_be_written_is_an_error_and_writes_nothing(tmp_path):
    grown = forest(rewards=[[1]])
    odd = Forest(Query("u", "q", (), extra={"handle": object()}), grown.trees)
    with pytest.raises(TypeError, match="object"):
        write_forest(tmp_path / "f.jsonl", odd)
    assert not (tmp_path / "f.jsonl").exists()


def test_each_forest_is_one_line_with_a_schema_version(tmp_path):
    path = tmp_path / "f.jsonl"
    for step in (1, 2):
        write_forest(path, forest(rewards=[[1, 0]]), step=step)
    lines = path.read_text().splitlines()
    assert [json.loads(line)["schema"] for line in lines] == [1, 1]
    assert "children" not in lines[0]


@pytest.fixture
def torn(tmp_path):
    """Two whole lines, the second of which a killed writer left half-written."""
    path = tmp_path / "f.jsonl"
    write_forest(path, forest(rewards=[[1, 0]], uid="a"), step=1)
    write_forest(path, forest(rewards=[[1, 0]], uid="b"), step=2)
    path.write_bytes(path.read_bytes()[:-40])
    return path


def test_a_torn_last_line_is_an_error_that_names_it(torn):
    records = read_forests(torn)
    assert next(records).step == 1
    with pytest.raises(ValueError, match=r"f\.jsonl:2: not a complete JSON line"):
        next(records)


def test_a_torn_last_line_is_reported_and_skipped_on_request(torn):
    with pytest.warns(TornLineWarning, match=r"f\.jsonl:2"):
        assert [record.step for record in read_forests(torn, skip_torn=True)] == [1]


def test_a_run_that_resumes_after_a_kill_loses_the_torn_line_only(torn):
    write_forest(torn, forest(rewards=[[1, 0]], uid="c"), step=3)
    with pytest.warns(TornLineWarning, match=r"f\.jsonl:2"):
        records = list(read_forests(torn, skip_torn=True))
    assert [record.forest.query.uid for record in records] == ["a", "c"]


def test_reading_is_lazy(torn):
    assert next(read_forests(torn)).forest.query.uid == "a"


def damage(record, how):
    nodes = record["forest"]["trees"][0]["nodes"]
    if how == "schema":
        record["schema"] = 99
    elif how == "no schema":
        del record["schema"]
    elif how == "parent after child":
        nodes[1]["parent"] = 2
    elif how == "depth":
        nodes[2]["depth"] = 7
    elif how == "missing field":
        del nodes[1]["step"]["token_ids"]
    elif how == "unknown field":
        nodes[1]["step"]["colour"] = "red"
    elif how == "action":
        nodes[1]["step"]["action"]["kind"] = "dance"
    return record


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("schema", "schema 99, expected 1"),
        ("no schema", "no 'schema'"),
        ("parent after child", "node 1 has parent 2"),
        ("depth", "depth 7"),
        ("missing field", "token_ids"),
        ("unknown field", "colour"),
        ("action", "dance"),
    ],
)
def test_a_line_of_another_shape_is_an_error_that_names_file_line_and_fault(tmp_path, how, message):
    path = tmp_path / "f.jsonl"
    write_forest(path, forest(rewards=[[1, 0]]), step=1)
    record = damage(json.loads(path.read_text()), how)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
    with pytest.raises(ValueError, match=rf"f\.jsonl:2: .*{message}"):
        list(read_forests(path, skip_torn=True))
