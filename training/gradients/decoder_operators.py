"""The standard ONNX operators of a decoder's graph, in torch and in float32, for its gradients.

A function takes the node and its inputs (None for a missing one), and returns the output, or a list of outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

from intaglio.training.integer.standard import FUNCTIONS, only

Function = Callable[..., Tensor | list[Tensor]]


def _cast(node: ir.Node, x: Tensor) -> Tensor:
    """Floating-point values stay float32, even if the graph uses fewer bits."""
    to = ir.DataType(node.attributes["to"].as_int())
    if to.is_floating_point():
        return x.to(torch.float32)
    return FUNCTIONS["Cast"](node, x)


def _rms_norm(node: ir.Node, x: Tensor, weight: Tensor) -> Tensor:
    only(node, axis=-1)
    return functional.rms_norm(x, x.shape[-1:], weight, node.attributes.get_float("epsilon", 1e-5))


def _split(node: ir.Node, x: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
    axis = node.attributes.get_int("axis", 0)
    if lengths is None:
        return list(torch.tensor_split(x, node.attributes["num_outputs"].as_int(), axis))
    return list(torch.split(x, lengths.tolist(), axis))


def _gather_nd(node: ir.Node, data: Tensor, indices: Tensor) -> Tensor:
    """Rows of `data` [batch, tokens, width] by `indices` [batch, wanted, 1]."""
    only(node, batch_dims=1)
    assert indices.shape[-1] == 1, "an index picks a token"
    return data[torch.arange(len(data))[:, None], indices[..., 0]]


def _scatter(node: ir.Node, past: Tensor, new: Tensor, starts: Tensor) -> Tensor:
    """`past` [batch, heads, capacity, head_dim] with `new` written from the slot `starts` [batch] on."""
    only(node, axis=2)
    tokens = new.shape[2]
    rows = [
        torch.cat([old[:, :start], fresh, old[:, start + tokens :]], 1)
        for old, fresh, start in zip(past, new, starts.tolist(), strict=True)
    ]
    return torch.stack(rows)


def _attention(node: ir.Node, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    only(node, is_causal=0)
    scale = node.attributes.get_float("scale", query.shape[-1] ** -0.5)
    return functional.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=True)


def _rotate(node: ir.Node, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate `x` [batch, heads, tokens, head_dim], pairing the halves of each head; angles [batch, tokens, half]."""
    only(node, interleaved=0, rotary_embedding_dim=0)
    first, second = x.chunk(2, -1)
    cosines, sines = cosines.unsqueeze(1), sines.unsqueeze(1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


DECODER_FUNCTIONS: dict[str, Function] = {
    **FUNCTIONS,
    "Attention": _attention,
    "Cast": _cast,
    "Cos": lambda node, x: torch.cos(x),
    "GatherND": _gather_nd,
    "RMSNormalization": _rms_norm,
    "RotaryEmbedding": _rotate,
    "Sin": lambda node, x: torch.sin(x),
    "Split": _split,
    "TensorScatter": _scatter,
}
