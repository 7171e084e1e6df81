"""T5 (Raffel et al., 2020): relative positions, RMSNorm before each part of a block, attention without a scale.

In float16 the states between the blocks stay float32, as in `transformers`: the states of trained T5s overflow
float16. So does the output of the second matrix of each feed-forward, which `transformers` multiplies in float32; here
its input is scaled down and its output up, by a power of two, as not every GPU's engines multiply in float32.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from intaglio.bundle.bundle import Decoder
from intaglio.errors import SourceError
from intaglio.exporters.encoder_decoders.written.family import EncoderDecoderFamily
from intaglio.exporters.encoder_decoders.written.graph import CrossAttentionDecoderGraph, EncoderGraph
from intaglio.exporters.files.config import integer
from intaglio.exporters.writing.graph_writer import GraphWriter
from intaglio.exporters.writing.relative_positions import RelativePositions

SMALLER = 2.0**-6  # keeps the sums within float16; inputs that become subnormal are off by 4e-6 at most
LONGEST = 1 << 16  # tokens; relative positions have no limit, so this bounds only the size of the cache
BIASES = "layer.0.SelfAttention.relative_attention_bias"  # of the first block, for all blocks of a part
IN_EVERY_BLOCK = "biases_in_every_block"  # whether each block has its own, an addition of ours to the configuration


def describe(config: dict[str, Any]) -> Decoder:
    """The manifest's entry. Raises `SourceError` for invalid numbers of buckets."""
    buckets = integer(config, "relative_attention_num_buckets", 4)
    furthest = integer(config, "relative_attention_max_distance", 1)
    if furthest <= buckets // 2:
        raise SourceError(
            f"config.json: relative_attention_max_distance {furthest} is not above half of "
            f"relative_attention_num_buckets {buckets}. Fix it."
        )
    integer(config, "num_layers", 1)
    heads = integer(config, "num_heads", 1)
    return Decoder(
        layers=integer(config, "num_decoder_layers", 1),
        heads=heads,
        kv_heads=heads,
        head_dim=integer(config, "d_kv", 1),
        vocab_size=integer(config, "vocab_size", 1),
        max_positions=LONGEST,
    )


def encode(graph: EncoderGraph, config: dict[str, Any]) -> None:
    """Write the encoder, and the cross-attention keys and values of the decoder's layers."""
    x = _embedded(graph, config, "encoder", graph.source_ids)
    for index in range(config["num_layers"]):
        path = f"encoder.block.{index}"
        if index == 0 or config.get(IN_EVERY_BLOCK):
            graph.relative_positions(f"{path}.{BIASES}", _relative(config, both_ways=True))
        with graph.module(path):
            x = _self_attention(graph, config, f"{path}.layer.0", x)
            x = _feed_forward(graph, config, f"{path}.layer.1", x)
    x = _norm(graph, config, "encoder.final_layer_norm", x)
    crossed = []
    for index in range(graph.decoder.layers):
        path = f"decoder.block.{index}.layer.1.EncDecAttention"
        crossed.append((_projected(graph, config, f"{path}.k", x), _projected(graph, config, f"{path}.v", x)))
    graph.finish(crossed)


def decode(graph: CrossAttentionDecoderGraph, config: dict[str, Any]) -> None:
    """Write the decoder. With `scale_decoder_outputs` the head's input is divided by the square root of its width."""
    width = config["d_model"]
    x = _embedded(graph, config, "decoder", graph.input_ids)
    for index in range(graph.decoder.layers):
        path = f"decoder.block.{index}"
        if index == 0 or config.get(IN_EVERY_BLOCK):
            graph.relative_positions(f"{path}.{BIASES}", _relative(config, both_ways=False))
        with graph.module(path):
            x = _self_attention(graph, config, f"{path}.layer.0", x)
            x = _cross_attention(graph, config, f"{path}.layer.1", index, x)
            x = _feed_forward(graph, config, f"{path}.layer.2", x)
    graph.finish(x, width, lambda last: _before_head(graph, config, last))


def _before_head(graph: CrossAttentionDecoderGraph, config: dict[str, Any], x: ir.Value) -> ir.Value:
    x = _norm(graph, config, "decoder.final_layer_norm", x)
    if config.get("scale_decoder_outputs", config["tie_word_embeddings"]):
        x = graph.op("Mul", [x, graph.constant("head_scale", config["d_model"] ** -0.5, graph.dtype)])
    return x


def _relative(config: dict[str, Any], both_ways: bool) -> RelativePositions:
    return RelativePositions(
        config["relative_attention_num_buckets"], config["relative_attention_max_distance"], both_ways
    )


def _embedded(graph: GraphWriter, config: dict[str, Any], part: str, ids: ir.Value) -> ir.Value:
    return _float32(graph, graph.embedding(f"{part}.embed_tokens", ids, config["vocab_size"], config["d_model"]))


def _self_attention(
    graph: EncoderGraph | CrossAttentionDecoderGraph, config: dict[str, Any], path: str, x: ir.Value
) -> ir.Value:
    with graph.module(path):
        inside = _norm(graph, config, f"{path}.layer_norm", x)
        path = f"{path}.SelfAttention"
        with graph.module(path):
            queries, keys, values = (_projected(graph, config, f"{path}.{name}", inside) for name in "qkv")
            attended = _merged(graph, config, f"{path}.o", graph.attention(queries, keys, values, 1.0))
        return graph.add(x, _float32(graph, attended))


def _cross_attention(
    graph: CrossAttentionDecoderGraph, config: dict[str, Any], path: str, index: int, x: ir.Value
) -> ir.Value:
    with graph.module(path):
        inside = _norm(graph, config, f"{path}.layer_norm", x)
        path = f"{path}.EncDecAttention"
        with graph.module(path):
            queries = _projected(graph, config, f"{path}.q", inside)
            attended = _merged(graph, config, f"{path}.o", graph.cross_attention(index, queries, 1.0))
        return graph.add(x, _float32(graph, attended))


def _projected(graph: GraphWriter, config: dict[str, Any], path: str, x: ir.Value) -> ir.Value:
    """[batch, tokens, d_model] to [batch, heads, tokens, d_kv]."""
    heads = config["num_heads"]
    return graph.heads(graph.linear(path, x, config["d_model"], heads * config["d_kv"], bias=False), heads)


def _merged(graph: GraphWriter, config: dict[str, Any], path: str, x: ir.Value) -> ir.Value:
    return graph.linear(path, x, config["num_heads"] * config["d_kv"], config["d_model"], bias=False)


def _feed_forward(graph: GraphWriter, config: dict[str, Any], path: str, x: ir.Value) -> ir.Value:
    width, inner = config["d_model"], config["d_ff"]
    with graph.module(path):
        inside = _norm(graph, config, f"{path}.layer_norm", x)
        path = f"{path}.DenseReluDense"
        with graph.module(path):
            first = "wi_0" if config["is_gated_act"] else "wi"
            hidden = graph.linear(f"{path}.{first}", inside, width, inner, bias=False)
            with graph.module(f"{path}.act"):
                hidden = graph.activation(config["dense_act_fn"], hidden)
            if config["is_gated_act"]:
                up = graph.linear(f"{path}.wi_1", inside, width, inner, bias=False)
                hidden = graph.op("Mul", [hidden, up])
            out = _second_product(graph, config, f"{path}.wo", hidden)
        return graph.add(x, out)


def _second_product(graph: GraphWriter, config: dict[str, Any], path: str, hidden: ir.Value) -> ir.Value:
    """The product of `hidden` and the second matrix of a feed-forward; float32."""
    inner, width = config["d_ff"], config["d_model"]
    if graph.dtype == ir.DataType.FLOAT:
        return graph.linear(path, hidden, inner, width, bias=False)
    with graph.module(path):
        hidden = graph.op("Mul", [hidden, graph.constant("smaller", SMALLER, graph.dtype)])
        out = _float32(graph, graph.linear(path, hidden, inner, width, bias=False))
        return graph.op("Mul", [out, graph.constant("larger", 1 / SMALLER, ir.DataType.FLOAT)])


def _norm(graph: GraphWriter, config: dict[str, Any], path: str, x: ir.Value) -> ir.Value:
    """RMSNorm of float32 states; returns the graph's dtype."""
    with graph.module(path):
        scale = graph.weight(f"{path}.weight", [config["d_model"]], dtype=ir.DataType.FLOAT)
        x = graph.op("RMSNormalization", [x, scale], axis=-1, epsilon=config["layer_norm_epsilon"])
        return x if graph.dtype == ir.DataType.FLOAT else graph.op("Cast", [x], to=graph.dtype)


def _float32(graph: GraphWriter, x: ir.Value) -> ir.Value:
    return x if graph.dtype == ir.DataType.FLOAT else graph.op("Cast", [x], to=ir.DataType.FLOAT)


FAMILY = EncoderDecoderFamily(
    model_type="t5",
    architecture="T5ForConditionalGeneration",
    blocks=("encoder.block", "decoder.block"),
    embedding="shared",
    copies=("encoder.embed_tokens", "decoder.embed_tokens"),
    describe=describe,
    encode=encode,
    decode=decode,
)
