"""A head start in copying: weights under which a fresh model repeats what it has seen before.

A search agent copies names from questions and passages. A transformer does that with two heads in
sequence, an *induction circuit* (Olsson et al., 2022): one head moves each token's identity one
position on, a later head looks for positions whose predecessor equals the current token and copies
what stands there. Small models find it late; :func:`plant_induction` sets it up by hand before the
first step, in a few heads, and training does the rest.

Rotary embeddings shape both. Position alone must decide for the first head, so its query and key
are biases that are aligned at distance one in the fast-rotating dimensions. Content alone must
decide for the second, so it uses the slow dimensions, which hardly turn within hundreds of tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2ForCausalLM

FAST_PAIRS = 8
SLOW_PAIRS = 20


@torch.no_grad()
def plant_induction(model: Qwen2ForCausalLM, sharpness: float = 3.0) -> None:
    """Plant a head that looks back in layer 0, and two that copy in each inner layer."""
    config: Any = model.config
    layers: Any = model.model.layers
    width, size = config.hidden_size, config.hidden_size // config.num_attention_heads
    scale = model.model.embed_tokens.weight.std().item()
    model.model.embed_tokens.weight[:, :size] = 0
    match, carry = orthonormal(size, width), torch.eye(size, width)
    for layer in layers:
        # Nothing else writes yet, so what the planted heads carry is not drowned in noise.
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    first = layers[0].self_attn
    look_back(first, size, config.rope_parameters["rope_theta"])
    first.v_proj.weight[:size] = match
    first.o_proj.weight[:, :size] = carry.T * scale
    slow = torch.zeros(size, 1)
    slow[size // 2 - SLOW_PAIRS : size // 2] = 1
    slow[size - SLOW_PAIRS :] = 1
    model.model.norm.weight.fill_(3.0)
    for layer in layers[1:-1]:
        whole = orthonormal(width, width)
        heads = min(2, config.num_attention_heads - 1)
        for head in range(heads):
            rows = slice(head * size, (head + 1) * size)
            layer.self_attn.q_proj.weight[rows] = match * slow * sharpness
            layer.self_attn.k_proj.weight[rows] = carry * slow * sharpness
            layer.self_attn.v_proj.weight[rows] = whole[rows]
            layer.self_attn.o_proj.weight[:, rows] = whole[rows].T * (2 * scale)


def look_back(attention: Any, size: int, theta: float, strength: float = 9.0) -> None:
    """Make head 0 of an attention layer attend to the previous position."""
    half = size // 2
    angle = theta ** (-torch.arange(FAST_PAIRS) / half)
    for projection in (attention.q_proj, attention.k_proj):
        projection.weight[:size] = 0
        projection.bias[:size] = 0
    attention.k_proj.bias[:FAST_PAIRS] = strength
    # A query turned back by one position meets the key of its predecessor at angle zero.
    attention.q_proj.bias[:FAST_PAIRS] = strength * angle.cos()
    attention.q_proj.bias[half : half + FAST_PAIRS] = -strength * angle.sin()


def orthonormal(rows: int, columns: int) -> Tensor:
    """Random orthonormal rows, shape (rows, columns)."""
    return torch.linalg.qr(torch.randn(columns, rows))[0].T
