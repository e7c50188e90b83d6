"""The installed verl still has every name and behaviour the plugin leans on."""

import importlib.metadata
import inspect
import os
import subprocess
import sys

import pytest

verl = pytest.importorskip("verl", reason="upstream verl is not installed")
torch = pytest.importorskip("torch")

from verl_tree_grpo import upstream


def test_import_verl_means_upstream_not_our_source_root():
    assert verl.__file__ is not None
    assert importlib.metadata.version("verl") == upstream.VERSION


@pytest.mark.parametrize("name", sorted(upstream.SYMBOLS))
def test_every_upstream_name_resolves_and_has_a_reason(name):
    path, why = upstream.SYMBOLS[name]
    assert getattr(upstream, name) is not None, path
    assert len(why) > 10


def test_an_unknown_upstream_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        upstream.nonsense  # noqa: B018


def parameters(function):
    names = inspect.signature(function).parameters
    return [name for name in names if name != "_ray_trace_ctx"]


def test_the_rollout_worker_has_the_methods_the_tree_worker_overrides_and_calls():
    worker = upstream.AgentLoopWorkerTQ.__ray_actor_class__
    assert parameters(worker._run_prompt) == [
        "self", "prompt", "sampling_params", "trajectory", "trace",
    ]  # fmt: skip
    assert parameters(worker._agent_loop_postprocess) == ["self", "output", "validate", "kwargs"]
    source = inspect.getsource(worker.generate_sequences)
    assert "self.background_tasks.add" in source, "collect() waits for these tasks"


def test_the_trainer_has_the_hooks_the_tree_trainer_overrides():
    trainer = upstream.PPOTrainerSync
    for name in ("on_sample_begin", "on_sample_end", "_validate", "_init_resource_pool_mgr"):
        assert parameters(getattr(trainer, name)) == ["self"], name
    assert parameters(trainer._compute_advantage) == ["self", "batch", "metrics"]
    step = inspect.getsource(trainer._step_once)
    assert step.index("on_sample_begin") < step.index("replay_buffer.sample")
    assert "poll_interval" in inspect.getsource(trainer._build_replay_buffer) or hasattr(
        upstream.trainer_base.ReplayBuffer, "_wait_for_next_poll"
    )


def test_mini_batches_count_prompts_times_rollout_n():
    source = inspect.getsource(upstream.PPOTrainerSync._update_actor)
    assert "ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n" in source


# FC-08: the text before the first underscore of a key is the prompt's uid
def test_the_replay_buffer_splits_keys_at_the_first_underscore():
    source = inspect.getsource(upstream.trainer_base.ReplayBuffer._materialize_batch)
    assert 'key.split("_")[0]' in source
    assert "uuid.uuid4()" in inspect.getsource(upstream.PPOTrainerSync._fetch_one_gen_batch)


def test_padding_rows_carry_a_pad_uid_and_a_zero_mask():
    from verl.trainer.ppo import padding_utils

    assert 'f"pad{' in inspect.getsource(padding_utils.upsample_batch_to_divisible_size)
    template, tag = padding_utils.construct_minimal_padding_template(
        {"position_ids": torch.arange(4), "tree_uid": "a/0"}, {"seq_len": 4}, eos_token_id=2
    )
    assert template["response_mask"].sum() == 0 and tag["is_padding"]


# FC-01, first half: why each leaf is handed over on its own
def test_upstream_copies_the_last_outputs_reward_onto_the_others_of_a_session():
    worker = upstream.AgentLoopWorkerTQ.__ray_actor_class__
    source = inspect.getsource(worker._agent_loop_postprocess)
    assert "output.reward_score = final_output.reward_score" in source


# FC-38
def test_position_ids_count_real_tokens_from_zero():
    from verl.utils.model import compute_position_id_with_mask

    positions = compute_position_id_with_mask(torch.tensor([[0, 0, 1, 1, 1, 1, 0]]))
    assert positions[0, 2:6].tolist() == [0, 1, 2, 3]


def test_the_plugin_changes_nothing_without_the_cpu_platform():
    code = (
        "import sys, verl_tree_grpo\n"
        "heavy = {'torch', 'ray', 'verl', 'vllm'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "VERL_PLATFORM"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=60)


def test_the_cpu_platform_registers_itself_when_verl_is_imported():
    code = (
        "import verl\n"
        "from verl.plugin.platform import get_platform\n"
        "assert get_platform().device_name == 'cpu', get_platform()\n"
        "import importlib.metadata as m; assert m.version('vllm').endswith('+cpu')\n"
    )
    env = os.environ | {"VERL_PLATFORM": "cpu"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=120)
