"""The recipes train with the real trainer, engine and index; they resume, and they fail loudly."""

import pytest

from search_r1.record import read_forests

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.usefixtures("no_ray_left")]


def assert_healthy(step, leaves):
    assert step["tree/leaves"] == leaves and step["tree/error_leaves"] == 0
    assert step["training/rollout_probs_diff_mean"] < 1e-3
    assert step["tree/tool_calls"] > 0
    assert step["actor/grad_norm"] > 0


def test_tree_search_trains_is_killed_and_resumes_where_it_was(train, start_server):
    script, url = "train_multihopqa_tree_search.sh", start_server().url
    # A rate at which stale engine weights would show in the probability gap by step 2 (FC-46).
    rate = "actor_rollout_ref.actor.optim.lr=1e-3"
    overrides = (
        rate,
        "trainer.total_training_steps=3",
        "trainer.save_freq=1",
        "trainer.test_freq=-1",
    )
    first = train(script, url, *overrides)
    first.wait_for_step(1)
    earlier = first.steps()
    first.kill()

    second = train(script, url, *overrides)
    assert second.wait() == 0, second.text[-3000:]
    resumed = second.steps()
    assert 1 not in resumed and max(resumed) == 3, "it repeated or lost steps"
    assert (second.out / "metrics.1.jsonl").exists(), "the metrics of the killed part are gone"
    for step in (earlier | resumed).values():
        assert_healthy(step, leaves=8 * 6)
        assert step["tree/served_block_fraction"] >= 0.9
    assert step["training/global_step"] == 3

    recorded = list(read_forests(second.out / "forests.jsonl", skip_torn=True))
    assert {len(record.forest.trees) for record in recorded} == {2}
    assert {len(list(record.forest.leaves())) for record in recorded} == {6}


def test_the_chain_baseline_trains_with_the_same_agent(train, start_server):
    run = train("train_multihopqa_grpo.sh", start_server().url, "trainer.total_training_steps=2")
    assert run.wait() == 0, run.text[-3000:]
    steps = run.steps()
    assert sorted(steps) == [1, 2]
    for step in steps.values():
        assert_healthy(step, leaves=8 * 4)
    assert any(key.startswith("val-tree/geohop/") for key in steps[2])


def test_a_retriever_that_dies_stops_the_run_with_its_name_in_the_message(train, start_server):
    server = start_server()
    run = train(
        "train_multihopqa_tree_search.sh",
        server.url,
        "trainer.total_training_steps=200",
        "trainer.test_freq=-1",
        "tree.retriever_retries=1",
        "tree.retriever_timeout_s=2",
    )
    run.wait_for_step(1)
    server.kill()
    assert run.wait(timeout=180) not in (0, None)
    last = run.text.strip().splitlines()[-1]
    assert "leaves of this step failed" in last and str(server.port) in last, run.text[-3000:]


def test_a_retriever_that_is_down_is_reported_before_anything_starts(train):
    run = train("train_multihopqa_tree_search.sh", "http://127.0.0.1:9")
    assert run.wait(timeout=120) == 2
    assert "tree-grpo serve" in run.text
    assert not (run.out / "checkpoints").exists()
