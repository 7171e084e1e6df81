"""Operators of ONNX inside a torch model: nodes of the graph while it is traced, the same computation otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.onnx.ops import symbolic

DOMAIN = "intaglio.traced"  # of nodes that the graph has between tracing and the surgery behind it
MARK, BRANCH = "Mark", "Branch"
EXIT, LAST = "exit", "last"  # names of marks: the states after the blocks before an early exit, and after all
_tracing = False


@contextmanager
def as_nodes() -> Iterator[None]:
    """Inside this block the operators return nodes of the graph that is traced, which compute nothing."""
    global _tracing
    _tracing = True
    try:
        yield
    finally:
        _tracing = False


def tracing() -> bool:
    """Whether the operators return nodes."""
    return _tracing


def _node(
    op_type: str,
    inputs: Sequence[Tensor],
    attributes: Mapping[str, Any],
    like: Tensor,
    shape: Sequence[Any],
    version: int,
    compute: Callable[[], Tensor],
) -> Tensor:
    if not _tracing:
        return compute()
    return symbolic(op_type, inputs, dict(attributes), dtype=like.dtype, shape=shape, version=version)


def marked(x: Tensor, name: str) -> Tensor:
    """`x`, to be found by this name in the traced graph."""
    return _node(f"{DOMAIN}::{MARK}", [x], {"name": name}, x, x.shape, 1, lambda: x)


def branch(staying: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """`new` [batch, tokens, width] for the tokens that are `staying`, bool [batch, tokens, 1], `old` for the others.

    The graph computes `new` only if some token of the step is staying.
    """
    inputs = [staying, new, old]
    return _node(f"{DOMAIN}::{BRANCH}", inputs, {}, new, new.shape, 1, lambda: torch.where(staying, new, old))


def tensor_scatter(buffer: Tensor, new: Tensor, start: Tensor) -> Tensor:
    """`buffer` [batch, heads, slots, dim] with `new` [batch, heads, tokens, dim] from the slot `start` [batch] on."""

    def compute() -> Tensor:
        written = buffer.clone()
        rows = torch.arange(buffer.shape[0])[:, None]
        written[rows, :, start[:, None] + torch.arange(new.shape[2])] = new.transpose(1, 2)
        return written

    attributes = {"axis": 2, "mode": "linear"}
    return _node("TensorScatter", [buffer, new, start], attributes, buffer, buffer.shape, 24, compute)


def rows_at(states: Tensor, indices: Tensor) -> Tensor:
    """The rows [batch, wanted, width] of `states` [batch, tokens, width] at `indices` [batch, wanted]."""

    def compute() -> Tensor:
        return states.gather(1, indices[..., None].expand(-1, -1, states.shape[-1]))

    shape = (*indices.shape, states.shape[-1])
    return _node("GatherND", [states, indices[..., None]], {"batch_dims": 1}, states, shape, 13, compute)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm over the last axis; `weight` [width]."""

    def compute() -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype) * weight

    attributes = {"axis": -1, "epsilon": epsilon}
    return _node("RMSNormalization", [x, weight], attributes, x, x.shape, 23, compute)


def rotary(x: Tensor, cosines: Tensor, sines: Tensor, interleaved: bool) -> Tensor:
    """Rotate the first components of `x` [batch, heads, tokens, head_dim] by angles [batch, tokens, pairs].

    A pair are two neighbours if `interleaved`, else one component of each half.
    """
    width = 2 * cosines.shape[-1]

    def compute() -> Tensor:
        cos, sin = cosines[:, None], sines[:, None]
        turned, rest = x[..., :width], x[..., width:]
        first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
        pair = (first * cos - second * sin, second * cos + first * sin)
        turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
        return torch.cat((turned, rest), -1)

    attributes: dict[str, Any] = {"interleaved": int(interleaved)}
    if width != x.shape[-1]:
        attributes |= {"rotary_embedding_dim": int(width), "num_heads": int(x.shape[1])}
    return _node("RotaryEmbedding", [x, cosines, sines], attributes, x, x.shape, 23, compute)


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    direct: bool = True,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of scaled queries [batch, heads, tokens, key_dim] to keys and values [batch, kv_heads, slots, ...].

    mask     bool [batch, 1, tokens, slots], true where a token attends to a slot; None: everywhere
    direct   whether keys and values are the buffers of a cache, and not computed from them
    softcap  the scores become softcap · tanh(score / softcap)
    sinks    [heads], one more score in each softmax, which is no slot's

    Returns [batch, heads, tokens, value_dim]. The queries are scaled, and not the scores: ONNX Runtime (1.31) has a
    kernel for the scores of one token that takes no factor. With another one it packs the keys first, which takes two
    to three times as long. What the operator lacks, in ONNX or in TensorRT (caps, sinks, keys and values of different
    widths or computed from those of the cache, with which TensorRT crashes), is computed from products, which do not
    copy the cache either.
    """

    def compute() -> Tensor:
        scores = grouped_product(queries, keys.transpose(-1, -2)).float()
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if mask is not None:
            scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
        if sinks is not None:
            sink = sinks.reshape(1, -1, 1, 1).to(scores.dtype).expand(*scores.shape[:3], 1)
            scores = torch.cat((scores, sink), -1)
        weights = scores.softmax(-1).to(values.dtype)
        return grouped_product(weights if sinks is None else weights[..., :-1], values)

    if softcap or sinks is not None or keys.shape[-1] != values.shape[-1] or not direct:
        return compute()
    shape = (*queries.shape[:3], values.shape[-1])
    inputs = [queries, keys, values] if mask is None else [queries, keys, values, mask]
    return _node("Attention", inputs, {"scale": 1.0}, queries, shape, 24, compute)


def grouped_product(x: Tensor, y: Tensor) -> Tensor:
    """The product of `x` [batch, heads, rows, inner] and the head of `y` [batch, kv_heads, inner, columns] for it."""
    batch, heads, rows, inner = x.shape
    groups = y.shape[1]
    product = x.reshape(batch, groups, heads // groups * rows, inner) @ y
    return product.reshape(batch, heads, rows, y.shape[-1])
