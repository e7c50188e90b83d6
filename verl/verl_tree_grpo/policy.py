"""The trained policy as :class:`search_r1.protocols.Policy`: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from search_r1.protocols import PolicyError
from search_r1.types import Generation


class HFCodec:
    """A Hugging Face tokenizer as the rollout needs it.

    Attributes:
        reopen_ids: what the chat template puts between a closed assistant turn and the next one.
        end_ids: ids that close the assistant turn.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.end_ids = frozenset({int(tokenizer.eos_token_id)})
        self.reopen_ids = tuple(_reopening(tokenizer)) if tokenizer.chat_template else ()

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Prompt ids of a conversation; the bare text where the tokenizer has no template."""
        if not self.tokenizer.chat_template:
            text = "\n".join(str(m["content"]) for m in messages)
            return self.tokenizer.encode(text)
        return _render(self.tokenizer, messages, add_generation_prompt=True)

    def encode(self, text: str) -> list[int]:
        """Observation ids; a control token spelled in ``text`` stays ordinary text."""
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled ids, control tokens left out, nothing cleaned up."""
        return self.tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


def _render(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> list[int]:
    return tokenizer.apply_chat_template(
        [dict(m) for m in messages], tokenize=True, return_dict=False, **kwargs
    )


def _reopening(tokenizer: Any) -> list[int]:
    """Ids after the end token of a closed assistant turn, up to where the next one starts."""
    user = {"role": "user", "content": "u"}
    closed = _render(tokenizer, [user, {"role": "assistant", "content": "a"}])
    ends = [i for i, token in enumerate(closed) if token == tokenizer.eos_token_id]
    after = closed[ends[-1] + 1 :] if ends else []
    opened = _render(tokenizer, [user], add_generation_prompt=True)
    bare = _render(tokenizer, [user], add_generation_prompt=False)
    return after + opened[len(bare) :]


class EnginePolicy:
    """The rollout engine behind verl's client.

    ``request_id`` is the prompt's uid, so that all trees of a prompt stick to one replica and its
    prefix cache.
    """

    def __init__(self, codec: HFCodec, client: Any, sampling_params: Mapping[str, Any]) -> None:
        self.codec = codec
        self.encode = codec.encode
        self.decode = codec.decode
        self._client = client
        self._sampling_params = dict(sampling_params)

    @property
    def reopen_ids(self) -> Sequence[int]:
        return self.codec.reopen_ids

    @property
    def end_ids(self) -> frozenset[int]:
        return self.codec.end_ids

    async def generate(
        self, context_ids: Sequence[int], *, request_id: str, max_tokens: int, stop: Sequence[str]
    ) -> Generation:
        """One request to the engine. Raises PolicyError where the engine gave the request up."""
        params = self._sampling_params | {
            "max_tokens": max_tokens,
            "stop": list(stop),
            "include_stop_str_in_output": True,
        }
        out = await self._client.generate(
            request_id=request_id, prompt_ids=list(context_ids), sampling_params=params
        )
        if out.stop_reason == "aborted" or not out.token_ids:
            raise PolicyError(f"the engine gave the request up (stop reason {out.stop_reason})")
        ids = tuple(out.token_ids)
        assert out.log_probs is not None and len(out.log_probs) == len(ids), (
            "the engine returned tokens without log-probs; rollout.calculate_log_probs must be true"
        )
        return Generation(
            token_ids=ids,
            logprobs=tuple(out.log_probs),
            num_cached_tokens=out.extra_fields.get("num_cached_tokens") or 0,
            weight_version=out.extra_fields.get("global_steps"),
        )
