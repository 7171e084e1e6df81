"""Attention from products, with the cache joined to the new tokens by `Concat`: as optimum and torch write it.

From the joined keys the way leads to the scores, a mask that is added to them, their softmax, and the product with the
joined values. Between these the graph may scale, cast, transpose and repeat heads; anything else is refused.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from intaglio.errors import SourceError
from intaglio.exporters.decoders.foreign.site import Cache, Nodes, Site

RESHAPED = ("Unsqueeze", "Expand", "Reshape", "Transpose", "Cast", "Identity", "Squeeze")
SCALED = ("Mul", "Div")


class _Way(NamedTuple):
    """A value behind others, and what the numbers were multiplied by on the way."""

    value: ir.Value
    factor: float


def site(node: ir.Node, nodes: Nodes, positions: ir.Value) -> Site | None:
    """The attention whose keys `node` joins, or None if it joins none. Raises `SourceError`."""
    if (keys := _joined(node)) is None:
        return None
    key, by_key = _forward(_Way(node.outputs[0], 1.0), (*RESHAPED, *SCALED))
    scores = _only_user(key)
    if scores.op_type != "MatMul" or scores.inputs[1] is not key:
        raise SourceError(f"it computes {scores.op_type} from its cache, where a product is expected")
    if _from_softmax(scores.inputs[0]):
        return None  # `node` joins values
    queries = _backward(_Way(scores.inputs[0], 1.0), SCALED)  # type: ignore[arg-type]
    scored = _scored(_Way(scores.outputs[0], by_key * queries.factor))
    attended = _user_of_weights(scored.softmax)
    if attended.op_type != "MatMul":
        raise SourceError(f"its attention has {attended.op_type} behind the softmax")
    joined = _backward(_Way(attended.inputs[1], 1.0), RESHAPED).value.producer()  # type: ignore[arg-type]
    values = _joined(joined) if joined is not None else None
    if joined is None or values is None:
        raise SourceError("its attention multiplies by values that no cache holds")
    (kv_heads, key_dim), (_, value_dim) = (_heads(past) for past, _ in (keys, values))
    return Site(
        attended,
        Cache(keys[0], values[0], node.outputs[0], joined.outputs[0]),
        queries.value,
        keys[1],
        values[1],
        0,  # the graph tells it when it runs
        kv_heads,
        key_dim,
        value_dim,
        scored.scale,
        attended.outputs[0],
        merged=False,
        softcap=scored.softcap,
        mask=scored.mask,
        causal=False,
    )


class _Scored(NamedTuple):
    """What happens to the product of queries and keys before the softmax."""

    softmax: ir.Node
    scale: float
    softcap: float
    mask: ir.Value | None


def _scored(way: _Way) -> _Scored:
    """Follow the scores to their softmax: scaled, capped by c·tanh(score / c), and with a mask added."""
    mask, scale, softcap = None, 0.0, 0.0
    while (user := _only_user(way.value)).op_type != "Softmax":
        number = _factor(user, way.value)
        if number is not None:
            way = _Way(user.outputs[0], way.factor * number)
        elif user.op_type == "Tanh" and not scale:
            scale, way = way.factor, _Way(user.outputs[0], 1.0)  # behind it the factor is the cap
        elif user.op_type in ("Cast", "Identity"):
            way = _Way(user.outputs[0], way.factor)
        elif user.op_type == "Add" and mask is None:
            mask = next(value for value in user.inputs if value is not way.value)
            way = _Way(user.outputs[0], way.factor)
        else:
            raise SourceError(f"its attention has {user.op_type} between scores and softmax")
    if scale:
        scale, softcap = scale * way.factor, way.factor
    return _Scored(user, scale or way.factor, softcap, mask)


def _heads(past: ir.Value) -> tuple[int, int]:
    """The heads of a cache, and their width."""
    shape = past.shape
    if shape is None or len(shape) != 4 or not isinstance(shape[1], int) or not isinstance(shape[3], int):
        raise SourceError(f"its cache {past.name} is not [batch, heads, tokens, width], with fixed heads and width")
    return shape[1], shape[3]


def _joined(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """The cache and the new tokens that a node joins, if it does."""
    if (
        node.op_type != "Concat"
        or node.domain
        or len(node.inputs) != 2
        or node.attributes["axis"].as_int() not in (2, -2)
    ):
        return None
    past, new = node.inputs
    if past is None or new is None or not past.is_graph_input() or past.is_initializer():
        return None
    return past, new


def _only_user(value: ir.Value) -> ir.Node:
    """The node that computes with a value; others may take its shape."""
    users = [node for node, _ in value.uses() if node.op_type != "Shape"]
    if len(users) != 1:
        raise SourceError(f"{value.name} is used {len(users)} times in its attention")
    return users[0]


def _user_of_weights(softmax: ir.Node) -> ir.Node:
    """The node that computes with the weights, behind casts, and zeros for rows without a number."""
    value = softmax.outputs[0]
    while True:
        users = {node for node, _ in value.uses() if node.op_type not in ("Shape", "IsNaN")}
        if len(users) != 1:
            raise SourceError(f"{value.name} is used {len(users)} times in its attention")
        (user,) = users
        if user.op_type not in ("Cast", "Identity", "Where"):
            return user
        value = user.outputs[0]


def _from_softmax(value: ir.Value | None) -> bool:
    """Whether a value is the weights that a softmax returns."""
    while value is not None and (node := value.producer()) is not None and node.op_type != "Softmax":
        if node.op_type not in ("Cast", "Identity", "Where"):
            return False
        value = node.inputs[-1]
    return value is not None and value.producer() is not None


def _forward(way: _Way, passed: tuple[str, ...]) -> _Way:
    """The last value that the operators `passed` make of one."""
    while (user := _only_user(way.value)).op_type in passed:
        number = _factor(user, way.value) if user.op_type in SCALED else 1.0
        if number is None:
            break
        way = _Way(user.outputs[0], way.factor * number)
    return way


def _backward(way: _Way, passed: tuple[str, ...]) -> _Way:
    """The first value that the operators `passed` made one of."""
    while (node := way.value.producer()) is not None and node.op_type in passed:
        value = next(
            (each for each in node.inputs if each is not None and ir.convenience.get_const_tensor(each) is None), None
        )
        number = _factor(node, value) if node.op_type in SCALED and value is not None else 1.0
        if value is None or number is None:
            break
        way = _Way(value, way.factor * number)
    return way


def _factor(node: ir.Node, value: ir.Value) -> float | None:
    """The number that a node multiplies `value` by, if it does that."""
    if node.op_type not in SCALED or (node.op_type == "Div" and node.inputs[0] is not value):
        return None
    other = next((each for each in node.inputs if each is not None and each is not value), None)
    tensor = None if other is None else ir.convenience.get_const_tensor(other)
    if tensor is None or tensor.size != 1:
        return None
    number = float(tensor.numpy().reshape(()))
    return number if node.op_type == "Mul" else 1.0 / number
