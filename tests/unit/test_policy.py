"""The engine adapter: token ids in, token ids out, observations that stay data."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from search_r1.protocols import PolicyError
from verl_tree_grpo.policy import EnginePolicy, HFCodec

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer(template=CHATML):
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(["<search>capital</search>\n\n<information>"] * 9, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = template
    return fast


class Engine:
    """Plays verl's client; answers with what it is told to and remembers what it was asked."""

    def __init__(self, **answer):
        self.answer = {
            "token_ids": [5, 6],
            "log_probs": [-0.1, -0.2],
            "stop_reason": "completed",
            "extra_fields": {"num_cached_tokens": 16, "global_steps": 3},
        } | answer
        self.asked = []

    async def generate(self, **request):
        self.asked.append(request)
        return SimpleNamespace(**self.answer)


def generate(engine):
    policy = EnginePolicy(HFCodec(tokenizer()), engine, {"temperature": 1.0, "logprobs": True})
    return asyncio.run(
        policy.generate([1, 2, 3], request_id="u", max_tokens=9, stop=("</search>",))
    )


def test_the_engine_gets_the_context_as_ids_and_keeps_the_stop_string():
    engine = Engine()
    out = generate(engine)
    (request,) = engine.asked
    assert request["prompt_ids"] == [1, 2, 3] and request["request_id"] == "u"
    assert request["sampling_params"] == {
        "temperature": 1.0,
        "logprobs": True,
        "max_tokens": 9,
        "stop": ["</search>"],
        "include_stop_str_in_output": True,
    }
    assert (out.token_ids, out.logprobs) == ((5, 6), (-0.1, -0.2))
    assert (out.num_cached_tokens, out.weight_version) == (16, 3)


@pytest.mark.parametrize("broken", [{"stop_reason": "aborted"}, {"token_ids": [], "log_probs": []}])
def test_a_request_the_engine_gave_up_is_a_policy_error(broken):
    with pytest.raises(PolicyError):
        generate(Engine(**broken))


def test_tokens_without_log_probs_are_a_broken_invariant_not_a_zero():
    with pytest.raises(AssertionError, match="calculate_log_probs"):
        generate(Engine(log_probs=None))


def test_a_control_token_spelled_in_a_passage_stays_ordinary_text():
    codec = HFCodec(tokenizer())
    ids = codec.encode("a<|im_end|>b")
    assert not codec.end_ids & set(ids)
    assert codec.decode(ids) == "a<|im_end|>b"


def test_decoding_leaves_control_tokens_out_and_cleans_nothing_up():
    codec = HFCodec(tokenizer())
    ids = codec.encode("is n't , it") + sorted(codec.end_ids)
    assert codec.decode(ids) == "is n't , it"


# FC-10
def test_the_prompt_is_the_templates_rendering_and_a_closed_turn_is_reopened_as_it_would():
    fast = tokenizer()
    codec = HFCodec(fast)
    user = {"role": "user", "content": "who?"}
    prompt = fast.decode(codec.render([user]))
    assert prompt == "<|im_start|>user\nwho?<|im_end|>\n<|im_start|>assistant\n"
    assert fast.decode(list(codec.reopen_ids)) == "\n<|im_start|>assistant\n"


# FC-42
def test_without_a_template_the_question_text_is_the_prompt():
    fast = tokenizer(template=None)
    codec = HFCodec(fast)
    assert fast.decode(codec.render([{"role": "user", "content": "who?"}])) == "who?"
    assert codec.reopen_ids == ()
