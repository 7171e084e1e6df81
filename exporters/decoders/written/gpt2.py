"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm before each half of a block, tanh GELU."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from intaglio.bundle.bundle import Decoder
from intaglio.errors import SourceError
from intaglio.exporters.decoders.written.family import DecoderFamily
from intaglio.exporters.decoders.written.graph import DecoderGraph
from intaglio.exporters.files.config import integer


def describe(config: dict[str, Any]) -> Decoder:
    """The manifest's entry. Raises `SourceError` for cross-attention and if the heads do not divide the width."""
    width, heads = integer(config, "n_embd", 1), integer(config, "n_head", 1)
    if config["add_cross_attention"]:
        raise SourceError("config.json: add_cross_attention is true, expected false (no encoder).")
    if width % heads:
        raise SourceError(f"config.json: n_embd {width} is not a multiple of n_head {heads}. Fix it.")
    return Decoder(
        layers=integer(config, "n_layer", 1),
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        vocab_size=integer(config, "vocab_size", 1),
        max_positions=integer(config, "n_positions", 2),
    )


def build(graph: DecoderGraph, config: dict[str, Any]) -> None:
    """Write the whole model."""
    decoder, width, epsilon = graph.decoder, config["n_embd"], config["layer_norm_epsilon"]
    tokens = graph.embedding("transformer.wte", graph.input_ids, decoder.vocab_size, width)
    places = graph.embedding("transformer.wpe", graph.positions, decoder.max_positions, width)
    x = graph.add(tokens, places)
    for index in range(decoder.layers):
        path = f"transformer.h.{index}"
        with graph.module(path):
            x = graph.block_input(index, x, width)
            x = graph.add(_attention(graph, config, path, index, x), x)
            x = graph.block_output(graph.add(x, _feed_forward(graph, config, path, x)))
    graph.finish(x, width, lambda last: graph.layer_norm("transformer.ln_f", last, width, epsilon))


def _attention(graph: DecoderGraph, config: dict[str, Any], path: str, index: int, x: ir.Value) -> ir.Value:
    heads, head_dim, width = graph.decoder.heads, graph.decoder.head_dim, config["n_embd"]
    x = graph.layer_norm(f"{path}.ln_1", x, width, config["layer_norm_epsilon"])
    with graph.module(f"{path}.attn"):
        joined = graph.linear(f"{path}.attn.c_attn", x, width, 3 * width, conv1d=True)
        split = graph.ops("Split", [joined, graph.constant("thirds", [width] * 3)], 3, axis=-1)
        queries, keys, values = (graph.heads(part, heads) for part in split)
        scale = head_dim**-0.5 if config["scale_attn_weights"] else 1.0
        if config["scale_attn_by_inverse_layer_idx"]:
            scale /= index + 1
        attended = graph.attention(queries, keys, values, scale)
        return graph.linear(f"{path}.attn.c_proj", attended, width, width, conv1d=True)


def _feed_forward(graph: DecoderGraph, config: dict[str, Any], path: str, x: ir.Value) -> ir.Value:
    width = config["n_embd"]
    inner = config["n_inner"] or 4 * width
    x = graph.layer_norm(f"{path}.ln_2", x, width, config["layer_norm_epsilon"])
    with graph.module(f"{path}.mlp"):
        x = graph.linear(f"{path}.mlp.c_fc", x, width, inner, conv1d=True)
        with graph.module(f"{path}.mlp.act"):
            x = graph.activation(config["activation_function"], x)
        return graph.linear(f"{path}.mlp.c_proj", x, inner, width, conv1d=True)


FAMILY = DecoderFamily(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    base="transformer",
    blocks="transformer.h",
    embedding="transformer.wte",
    describe=describe,
    build=build,
)
