"""The network of the planner, which begins with the parts that copying takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

THETA = 1e6  # of the rotary angles: most dimensions of a head hardly turn within a conversation
TURNING = 6  # of the angles of a head, those that turn from token to token; the others compare contents
OFFSETS = (1, 2, 3, 4)  # tokens back that the heads of the first block begin by looking at
PEAK = 6.0  # of the biases that make them look there
SHARE = 0.07  # of their input in their output
COPY = 0.4  # of what those of the second block read that they write
MATCH = 2.0  # of queries and keys of the second block
QUIET = 0.1  # of the other matrices that write


@dataclass(frozen=True)
class Shape:
    """The size of the model, and how it is trained."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    inner: int = 320  # of the feed-forward parts
    learning_rate: float = 4e-3  # the highest, of Muon and AdamW
    tokens: int = 2048  # of a step, with padding


def new_model(shape: Shape, vocabulary: int, context: int, end: int) -> LlamaForCausalLM:
    """An untrained model, float32, from torch's seed, that copies: see `begin_to_copy`."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=shape.width,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            max_position_embeddings=context,
            rope_parameters={"rope_type": "default", "rope_theta": THETA},
            attention_bias=True,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=end,
            initializer_range=0.05,
        )
    )
    begin_to_copy(model)
    return model


@torch.no_grad()
def begin_to_copy(model: LlamaForCausalLM) -> None:
    """Let the second block attend to what followed the last tokens where they stood before, and write it.

    These are induction heads, which a small model takes long to find from random weights. The heads of the first block
    look some tokens back, by biases that the rotary angles turn, and write a part of what they see. Those of the second
    compare the last token, every other one the last two, with what stood before each place, in the dimensions that
    hardly turn, and write what stands there.
    """
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    size, heads, width = first.head_dim, len(OFFSETS), model.config.hidden_size
    half = size // 2
    still = torch.cat([torch.arange(TURNING, half), torch.arange(half + TURNING, size)])
    read, written = _bases(width, size), _bases(width, size)  # [heads, size, width]
    mixed = torch.linalg.qr(torch.randn(size, size))[0]
    for layer in model.model.layers:
        layer.mlp.down_proj.weight *= QUIET
        layer.self_attn.o_proj.weight *= QUIET
    for head in range(heads):
        place = slice(head * size, (head + 1) * size)
        first.q_proj.bias[place], first.k_proj.bias[place] = _looking_back(OFFSETS[head], size)
        first.q_proj.weight[place] *= QUIET
        first.k_proj.weight[place] *= QUIET
        first.v_proj.weight[place] = read[0] if head < 2 else read[head]
        first.o_proj.weight[:, place] = SHARE * written[head].T
        queries, keys = read[0], written[0]
        if head % 2:
            queries, keys = queries + mixed @ written[0], keys + mixed @ written[1]
        for projection, basis in ((second.q_proj, queries), (second.k_proj, keys)):
            projection.weight[place] = 0.0
            projection.weight[place][still] = MATCH * basis[still]
        second.v_proj.weight[place] = read[head]
        second.o_proj.weight[:, place] = COPY * read[head].T


def _bases(width: int, size: int) -> Tensor:
    """Return orthonormal bases of parts of the stream, [width / size, size, width]."""
    return torch.linalg.qr(torch.randn(width, width))[0].view(-1, size, width)


def _looking_back(offset: int, size: int) -> tuple[Tensor, Tensor]:
    """Return biases of queries and keys, [size], whose product is the largest `offset` tokens back."""
    half = size // 2
    turned = offset * THETA ** (-torch.arange(TURNING) / half)
    queries, keys = torch.zeros(size), torch.zeros(size)
    keys[:TURNING] = PEAK
    queries[:TURNING], queries[half : half + TURNING] = PEAK * turned.cos(), -PEAK * turned.sin()
    return queries, keys
