"""LLaMA (Touvron et al., 2023) and decoders of the same structure: grouped heads, rotary positions, RMSNorm, SwiGLU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from intaglio.bundle.bundle import Decoder
from intaglio.errors import SourceError
from intaglio.exporters.decoders.written.family import DecoderFamily
from intaglio.exporters.decoders.written.graph import DecoderGraph
from intaglio.exporters.files.config import integer
from intaglio.exporters.writing.rotary import frequencies

# Queries [batch, heads, tokens, head_dim], keys and values [batch, kv_heads, tokens, head_dim].
Heads = tuple[ir.Value, ir.Value, ir.Value]
Project = Callable[[DecoderGraph, dict[str, Any], str, ir.Value], Heads]


def describe(config: dict[str, Any]) -> Decoder:
    """The manifest's entry. Raises `SourceError` if the numbers of heads do not divide."""
    width, heads = integer(config, "hidden_size", 1), integer(config, "num_attention_heads", 1)
    kv_heads = integer(config, "num_key_value_heads", 1, default=heads)
    if config.get("head_dim") is None and width % heads:
        raise SourceError(f"config.json: hidden_size {width} is not a multiple of num_attention_heads {heads}. Fix it.")
    if heads % kv_heads:
        raise SourceError(
            f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}. Fix it."
        )
    return Decoder(
        layers=integer(config, "num_hidden_layers", 1),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=integer(config, "head_dim", 2, default=width // heads),
        vocab_size=integer(config, "vocab_size", 1),
        max_positions=integer(config, "max_position_embeddings", 2),
    )


def projected(graph: DecoderGraph, config: dict[str, Any], path: str, x: ir.Value) -> Heads:
    """Queries, keys and values of the attention at `path` for its input `x`, before the rotary embedding."""
    decoder, bias = graph.decoder, config.get("attention_bias", False)
    queries, keys, values = (
        graph.heads(graph.linear(f"{path}.{name}", x, config["hidden_size"], heads * decoder.head_dim, bias), heads)
        for name, heads in (("q_proj", decoder.heads), ("k_proj", decoder.kv_heads), ("v_proj", decoder.kv_heads))
    )
    return queries, keys, values


def build(graph: DecoderGraph, config: dict[str, Any], project: Project = projected) -> None:
    """Write the whole model: LLaMA, or a similar one whose queries, keys and values `project` computes."""
    decoder, width = graph.decoder, config["hidden_size"]
    x = graph.embedding("model.embed_tokens", graph.input_ids, decoder.vocab_size, width)
    rope = frequencies(config["rope_parameters"], decoder.head_dim, decoder.max_positions)
    graph.rotary_angles(*rope, decoder.head_dim**-0.5)
    for index in range(decoder.layers):
        path = f"model.layers.{index}"
        with graph.module(path):
            x = graph.block_input(index, x, width)
            inside = graph.rms_norm(f"{path}.input_layernorm", x, width, config["rms_norm_eps"])
            x = graph.add(x, _attention(graph, config, f"{path}.self_attn", inside, project))
            inside = graph.rms_norm(f"{path}.post_attention_layernorm", x, width, config["rms_norm_eps"])
            x = graph.block_output(graph.add(x, _feed_forward(graph, config, f"{path}.mlp", inside)))
    graph.finish(x, width, lambda last: graph.rms_norm("model.norm", last, width, config["rms_norm_eps"]))


def _attention(graph: DecoderGraph, config: dict[str, Any], path: str, x: ir.Value, project: Project) -> ir.Value:
    decoder = graph.decoder
    with graph.module(path):
        queries, keys, values = project(graph, config, path, x)
        attended = graph.attention(graph.rotate(queries, scaled=True), graph.rotate(keys), values, 1.0)
        joined, bias = decoder.heads * decoder.head_dim, config.get("attention_bias", False)
        return graph.linear(f"{path}.o_proj", attended, joined, config["hidden_size"], bias)


def _feed_forward(graph: DecoderGraph, config: dict[str, Any], path: str, x: ir.Value) -> ir.Value:
    width, inner, bias = config["hidden_size"], config["intermediate_size"], config.get("mlp_bias", False)
    with graph.module(path):
        gate = graph.linear(f"{path}.gate_proj", x, width, inner, bias)
        with graph.module(f"{path}.act_fn"):
            gate = graph.activation(config["hidden_act"], gate)
        up = graph.linear(f"{path}.up_proj", x, width, inner, bias)
        return graph.linear(f"{path}.down_proj", graph.op("Mul", [gate, up]), inner, width, bias)


FAMILY = DecoderFamily(
    model_type="llama",
    architecture="LlamaForCausalLM",
    base="model",
    blocks="model.layers",
    embedding="model.embed_tokens",
    describe=describe,
    build=build,
)
