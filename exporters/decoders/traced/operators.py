"""Operators of ONNX inside a torch model: nodes of the graph while it is traced, the same computation otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.onnx.ops import symbolic, symbolic_multi_out

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


def tensor_scatter(buffer: Tensor, new: Tensor, start: Tensor, axis: int) -> Tensor:
    """`buffer` [batch, ...] with `new` written along `axis` from the index `start` [batch] on."""

    def compute() -> Tensor:
        written = buffer.clone()
        rows = torch.arange(buffer.shape[0])[:, None]
        places = start[:, None] + torch.arange(new.shape[axis])
        written.movedim(axis, 1)[rows, places] = new.movedim(axis, 1)
        return written

    attributes = {"axis": axis, "mode": "linear"}
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
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """Attention of scaled queries [batch, heads, tokens, key_dim] to keys and values [batch, kv_heads, slots, ...].

    mask     bool [batch, 1, tokens, slots], true where a token attends to a slot
    softcap  the scores become softcap · tanh(score / softcap)
    sinks    [heads], one more score of each softmax, to no slot

    Returns [batch, heads, tokens, value_dim]. The queries are scaled, not the scores: see `GraphWriter.attend`.
    """
    shape = (*queries.shape[:3], values.shape[-1])
    inputs, attributes = [queries, keys, values, mask], {"scale": 1.0, **({"softcap": softcap} if softcap else {})}
    if not _tracing:
        scores = _scores(queries, keys, mask, softcap)
        attended = scores.softmax(-1).to(values.dtype) @ _repeated(values, queries)
    elif sinks is None:
        return symbolic("Attention", inputs, attributes, dtype=queries.dtype, shape=shape, version=24)
    else:
        attended, _, _, scores = symbolic_multi_out(
            "Attention", inputs, attributes | {"qk_matmul_output_mode": 2}, version=24,
            dtypes=[queries.dtype] * 4, shapes=[shape, keys.shape, values.shape, (*queries.shape[:3], keys.shape[2])],
        )  # fmt: skip
    if sinks is None:
        return attended
    total = torch.logsumexp(scores.float(), -1, keepdim=True)  # the sink takes its part of every softmax
    return attended * torch.sigmoid(total - sinks.reshape(1, -1, 1, 1)).to(attended.dtype)


def _scores(queries: Tensor, keys: Tensor, mask: Tensor, softcap: float | None) -> Tensor:
    scores = (queries @ _repeated(keys, queries).transpose(-1, -2)).float()
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def _repeated(heads: Tensor, queries: Tensor) -> Tensor:
    """Keys or values, repeated for the query heads that each serves."""
    return heads.repeat_interleave(queries.shape[1] // heads.shape[1], 1)
