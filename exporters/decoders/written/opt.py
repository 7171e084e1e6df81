"""OPT (Zhang et al., 2022): learned positions counted from 2, ReLU, LayerNorm before or (350M) after each half."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from intaglio.bundle.bundle import Decoder
from intaglio.errors import SourceError
from intaglio.exporters.decoders.written.family import DecoderFamily
from intaglio.exporters.decoders.written.graph import DecoderGraph
from intaglio.exporters.files.config import integer

OFFSET = 2  # the first rows of the position table, which no token uses
EPSILON = 1e-5  # torch's default for LayerNorm


def describe(config: dict[str, Any]) -> Decoder:
    """The manifest's entry. Raises `SourceError` if the heads do not divide the width."""
    width, heads = integer(config, "hidden_size", 1), integer(config, "num_attention_heads", 1)
    if width % heads:
        raise SourceError(f"config.json: hidden_size {width} is not a multiple of num_attention_heads {heads}. Fix it.")
    return Decoder(
        layers=integer(config, "num_hidden_layers", 1),
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        vocab_size=integer(config, "vocab_size", 1),
        max_positions=integer(config, "max_position_embeddings", 2),
    )


def build(graph: DecoderGraph, config: dict[str, Any]) -> None:
    """Write the whole model."""
    decoder, width, narrow = graph.decoder, config["hidden_size"], config["word_embed_proj_dim"]
    x = graph.embedding("model.decoder.embed_tokens", graph.input_ids, decoder.vocab_size, narrow)
    if narrow != width:
        x = graph.linear("model.decoder.project_in", x, narrow, width, bias=False)
    path = "model.decoder.embed_positions"
    with graph.module(path):
        rows = graph.op("Add", [graph.positions, graph.constant("position_offset", OFFSET)])
        places = graph.embedding(path, rows, decoder.max_positions + OFFSET, width)
    x = graph.add(x, places)
    for index in range(decoder.layers):
        path = f"model.decoder.layers.{index}"
        with graph.module(path):
            x = graph.block_output(_block(graph, config, path, graph.block_input(index, x, width)))
    graph.finish(x, narrow, lambda last: _before_head(graph, config, last))


def _before_head(graph: DecoderGraph, config: dict[str, Any], x: ir.Value) -> ir.Value:
    width, narrow = config["hidden_size"], config["word_embed_proj_dim"]
    if config["do_layer_norm_before"] and not config["_remove_final_layer_norm"]:
        x = _norm(graph, config, "model.decoder.final_layer_norm", x)
    return graph.linear("model.decoder.project_out", x, width, narrow, bias=False) if narrow != width else x


def _block(graph: DecoderGraph, config: dict[str, Any], path: str, x: ir.Value) -> ir.Value:
    """Write a block; the norm of each half is before it, or after its residual connection."""
    before = config["do_layer_norm_before"]
    inside = _norm(graph, config, f"{path}.self_attn_layer_norm", x) if before else x
    x = graph.add(x, _attention(graph, config, f"{path}.self_attn", inside))
    if not before:
        x = _norm(graph, config, f"{path}.self_attn_layer_norm", x)
    inside = _norm(graph, config, f"{path}.final_layer_norm", x) if before else x
    x = graph.add(x, _feed_forward(graph, config, path, inside))
    return x if before else _norm(graph, config, f"{path}.final_layer_norm", x)


def _norm(graph: DecoderGraph, config: dict[str, Any], path: str, x: ir.Value) -> ir.Value:
    return graph.layer_norm(path, x, config["hidden_size"], EPSILON, config["layer_norm_elementwise_affine"])


def _attention(graph: DecoderGraph, config: dict[str, Any], path: str, x: ir.Value) -> ir.Value:
    width, bias, heads = config["hidden_size"], config["enable_bias"], graph.decoder.heads
    with graph.module(path):
        queries, keys, values = (
            graph.heads(graph.linear(f"{path}.{name}", x, width, width, bias), heads)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        attended = graph.attention(queries, keys, values, graph.decoder.head_dim**-0.5)
        return graph.linear(f"{path}.out_proj", attended, width, width, bias)


def _feed_forward(graph: DecoderGraph, config: dict[str, Any], path: str, x: ir.Value) -> ir.Value:
    width, inner, bias = config["hidden_size"], config["ffn_dim"], config["enable_bias"]
    x = graph.linear(f"{path}.fc1", x, width, inner, bias)
    with graph.module(f"{path}.activation_fn"):
        x = graph.activation(config["activation_function"], x)
    return graph.linear(f"{path}.fc2", x, inner, width, bias)


FAMILY = DecoderFamily(
    model_type="opt",
    architecture="OPTForCausalLM",
    base="model",
    blocks="model.decoder.layers",
    embedding="model.decoder.embed_tokens",
    describe=describe,
    build=build,
)
