"""The standard ONNX operators of a decoder's graph, in torch and in float32, for its gradients.

A function takes the node and its inputs (None for a missing one), and returns the output, or a list of outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

from intaglio.errors import GraphError
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
    return functional.rms_norm(x, x.shape[-1:], eps=node.attributes.get_float("epsilon", 1e-5)) * weight


def _split(node: ir.Node, x: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
    axis = node.attributes.get_int("axis", 0)
    if lengths is None:
        return list(torch.tensor_split(x, node.attributes["num_outputs"].as_int(), axis))
    return list(torch.split(x, lengths.tolist(), axis))


def _gather_nd(node: ir.Node, data: Tensor, indices: Tensor) -> Tensor:
    """The slices of `data` at `indices` [..., k], which count through its first k axes behind `batch_dims` of them."""
    batch = node.attributes.get_int("batch_dims", 0)
    rows = [
        torch.arange(length).reshape([-1 if axis == each else 1 for each in range(indices.ndim - 1)])
        for axis, length in enumerate(data.shape[:batch])
    ]
    return data[(*rows, *indices.unbind(-1))]


def _scatter_nd(node: ir.Node, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    _only_text(node, reduction="none")
    return data.index_put(indices.unbind(-1), updates)


def _scatter_elements(node: ir.Node, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    _only_text(node, reduction="none")
    axis = node.attributes.get_int("axis", 0)
    return data.scatter(axis, torch.where(indices < 0, indices + data.shape[axis], indices), updates)


def _only_text(node: ir.Node, **supported: str) -> None:
    for name, value in supported.items():
        if (got := node.attributes.get_string(name, value)) != value:
            raise GraphError(f"{node.op_type} {node.name}: {name}={got} has no gradient here, only {name}={value}.")


def _top_k(node: ir.Node, x: Tensor, count: Tensor) -> list[Tensor]:
    get = node.attributes.get_int
    return list(torch.topk(x, int(count), get("axis", -1), bool(get("largest", 1)), bool(get("sorted", 1))))


def _arg_max(node: ir.Node, x: Tensor) -> Tensor:
    only(node, select_last_index=0)
    return x.argmax(node.attributes.get_int("axis", 0), bool(node.attributes.get_int("keepdims", 1)))


def _convolve(node: ir.Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Of [batch, channels, tokens]."""
    pads = list(node.attributes.get_ints("pads", [0, 0]))
    assert len(pads) == 2, "a convolution over tokens"
    strides, dilations = (list(node.attributes.get_ints(name, [1])) for name in ("strides", "dilations"))
    groups = node.attributes.get_int("group", 1)
    return functional.conv1d(functional.pad(x, pads), weight, bias, strides, 0, dilations, groups)


def _filled(node: ir.Node, shape: Tensor) -> Tensor:
    value = node.attributes.get_tensor("value")
    filling = torch.zeros(1) if value is None else torch.from_numpy(np.array(value.numpy()))
    return filling.expand(shape.tolist()).clone()


def _remainder(node: ir.Node, x: Tensor, y: Tensor) -> Tensor:
    """With the sign of the divisor, or of the dividend if `fmod`."""
    return torch.fmod(x, y) if node.attributes.get_int("fmod", 0) else torch.remainder(x, y)


def _folded(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    """A function of two tensors, for any number of them."""
    return lambda node, *inputs: reduce(function, inputs)


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
    only(node, is_causal=0, qk_matmul_output_mode=0)
    scale = node.attributes.get_float("scale", query.shape[-1] ** -0.5)
    cap = node.attributes.get_float("softcap", 0.0)
    if not cap:
        return functional.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=True)
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
    scores = cap * torch.tanh(query @ key.transpose(-1, -2) * (scale / cap))
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1) @ value


def _rotate(node: ir.Node, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate `x` [batch, heads, tokens, head_dim] by angles [batch, tokens, pairs].

    Pairs are of the first `rotary_embedding_dim` components: of both halves, or of neighbours if `interleaved`.
    """
    width = node.attributes.get_int("rotary_embedding_dim", 0) or x.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    cosines, sines = cosines.unsqueeze(1), sines.unsqueeze(1)
    interleaved = node.attributes.get_int("interleaved", 0)
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = (first * cosines - second * sines, second * cosines + first * sines)
    return torch.cat([torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1), rest], -1)


DECODER_FUNCTIONS: dict[str, Function] = {
    **FUNCTIONS,
    "Abs": lambda node, x: x.abs(),
    "ArgMax": _arg_max,
    "Attention": _attention,
    "Cast": _cast,
    "ConstantOfShape": _filled,
    "Conv": _convolve,
    "Cos": lambda node, x: torch.cos(x),
    "Exp": lambda node, x: torch.exp(x),
    "Floor": lambda node, x: torch.floor(x),
    "GatherND": _gather_nd,
    "GreaterOrEqual": lambda node, x, y: x >= y,
    "LessOrEqual": lambda node, x, y: x <= y,
    "Log": lambda node, x: torch.log(x),
    "Max": _folded(torch.maximum),
    "Min": _folded(torch.minimum),
    "Mod": _remainder,
    "RMSNormalization": _rms_norm,
    "Range": lambda node, start, end, step: torch.arange(start.item(), end.item(), step.item()),
    "Reciprocal": lambda node, x: torch.reciprocal(x),
    "RotaryEmbedding": _rotate,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Sin": lambda node, x: torch.sin(x),
    "Softplus": lambda node, x: functional.softplus(x),
    "Split": _split,
    "TensorScatter": _scatter,
    "Tile": lambda node, x, repeats: x.repeat(*repeats.tolist()),
    "TopK": _top_k,
}
