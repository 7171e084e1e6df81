"""`GroupQueryAttention` of ONNX Runtime, as onnxruntime-genai and mobius write it."""

from __future__ import annotations

import onnx_ir as ir

from intaglio.errors import SourceError
from intaglio.exporters.decoders.foreign.site import Cache, Nodes, Site, given, last_length

INPUTS = (
    "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache",
    "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight",
)  # fmt: skip
UNREAD = ("attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight")
# Attributes with another value than these change what is computed, and are not read. `sliding_window_cache` only says
# that tokens before the window may be left out of the cache.
EXPECTED = {"smooth_softmax": (0, -1), "qk_output": (0,), "causal": (1,)}


def site(node: ir.Node, nodes: Nodes, positions: ir.Value) -> Site | None:
    """The attention that `node` computes, or None if it is another operator. Raises `SourceError`."""
    if (node.domain, node.op_type) != ("com.microsoft", "GroupQueryAttention"):
        return None
    inputs = {name: value for name, value in zip(INPUTS, node.inputs, strict=False) if value is not None}
    attributes = node.attributes
    for name in UNREAD:
        if name in inputs:
            raise SourceError(f"its GroupQueryAttention has {name}, which is not read")
    for name, known in EXPECTED.items():
        if (found := attributes.get_int(name, known[0])) not in known:
            raise SourceError(f"its GroupQueryAttention has {name} = {found}, expected {known[0]}")
    heads, kv_heads = attributes["num_heads"].as_int(), attributes["kv_num_heads"].as_int()
    past_key, past_value = given(node, 3), given(node, 4)
    if past_key is None or past_value is None or len(node.outputs) < 3:
        raise SourceError("its GroupQueryAttention has no cache")
    query = inputs["query"]
    packed = "key" not in inputs
    cache = Cache(past_key, past_value, node.outputs[1], node.outputs[2])
    dim = cache.dims()[0] or last_length(query, "queries") // (heads + 2 * kv_heads if packed else heads)
    with nodes.before(node):
        if packed:
            sizes = nodes.constant(f"split_{heads}_{kv_heads}_{dim}", [heads * dim, kv_heads * dim, kv_heads * dim])
            query, key, value = nodes.ops("Split", [query, sizes], 3, axis=-1)
        else:
            key, value = inputs["key"], inputs["value"]
        queries, keys, values = (
            nodes.split_heads(x, count, dim) for x, count in ((query, heads), (key, kv_heads), (value, kv_heads))
        )
        if attributes.get_int("do_rotary", 0):
            tables = [inputs.get("cos_cache"), inputs.get("sin_cache")]
            where = inputs.get("position_ids", positions)
            cosines, sines = (nodes.op("Gather", [table, where], axis=0) for table in tables)
            rotated = 2 * last_length(tables[0], "cosines") if tables[0] is not None else dim
            interleaved = attributes.get_int("rotary_interleaved", 0)
            partly = rotated != dim

            def turned(x: ir.Value, count: int) -> ir.Value:
                more = {"rotary_embedding_dim": rotated, "num_heads": count} if partly else {}
                return nodes.op("RotaryEmbedding", [x, cosines, sines], interleaved=interleaved, **more)

            queries, keys = turned(queries, heads), turned(keys, kv_heads)
    window = attributes.get_int("local_window_size", -1)
    return Site(
        node,
        cache,
        queries,
        keys,
        values,
        heads,
        kv_heads,
        dim,
        dim,
        attributes.get_float("scale", 0.0) or dim**-0.5,
        node.outputs[0],
        merged=True,
        softcap=attributes.get_float("softcap", 0.0),
        window=window if window > 0 else None,
    )
