"""ONNX's own `Attention` with a cache, as mobius writes it."""

from __future__ import annotations

import onnx_ir as ir

from intaglio.errors import SourceError
from intaglio.exporters.decoders.foreign.site import Cache, Nodes, Site, given, last_length


def site(node: ir.Node, nodes: Nodes, positions: ir.Value) -> Site | None:
    """The attention that `node` computes, or None if it is another operator, or has no cache. Raises `SourceError`."""
    past_key, past_value = given(node, 4), given(node, 5)
    if (node.domain, node.op_type) != ("", "Attention") or past_key is None or past_value is None:
        return None
    if len(node.outputs) < 3:
        raise SourceError("its Attention does not return its cache")
    if given(node, 6) is not None:
        raise SourceError("its Attention has nonpad_kv_seqlen beside a cache, which is not read")
    attributes = node.attributes
    query, key, value = node.inputs[:3]
    assert query is not None and key is not None and value is not None
    heads, kv_heads = attributes.get_int("q_num_heads", 0), attributes.get_int("kv_num_heads", 0)
    merged = heads > 0  # three axes
    if not merged:
        heads, kv_heads = (_heads(x) for x in (query, key))
    cache = Cache(past_key, past_value, node.outputs[1], node.outputs[2])
    key_dim, value_dim = (
        dim or last_length(x, "heads") // (kv_heads if merged else 1)
        for dim, x in zip(cache.dims(), (key, value), strict=True)
    )
    with nodes.before(node):
        if merged:
            query, key, value = (
                nodes.split_heads(x, count, dim)
                for x, count, dim in ((query, heads, key_dim), (key, kv_heads, key_dim), (value, kv_heads, value_dim))
            )
    return Site(
        node,
        cache,
        query,
        key,
        value,
        heads,
        kv_heads,
        key_dim,
        value_dim,
        attributes.get_float("scale", 0.0) or key_dim**-0.5,
        node.outputs[0],
        merged,
        softcap=attributes.get_float("softcap", 0.0),
        mask=given(node, 3),
        causal=bool(attributes.get_int("is_causal", 0)),
    )


def _heads(x: ir.Value) -> int:
    """The second of four axes."""
    if x.shape is None or len(x.shape) != 4 or not isinstance(count := x.shape[1], int):
        raise SourceError(f"the graph does not tell the number of heads of {x.name}")
    return count
