"""LLaMA (Touvron et al., 2023) and the decoders of its shape: grouped heads, rotary positions, RMSNorm, SwiGLU."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from intaglio.bundle import Decoder
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.config import integer
from intaglio.exporters.decoders.family import DecoderFamily
from intaglio.exporters.decoders.graph import DecoderGraph
from intaglio.exporters.writing.rotary import frequencies


def describe(config: dict[str, Any]) -> Decoder:
    """What the manifest records. Raises `SourceError` for heads that do not divide."""
    width, heads = integer(config, "hidden_size", 1), integer(config, "num_attention_heads", 1)
    kv_heads = integer(config, "num_key_value_heads", 1, default=heads)
    if config.get("head_dim") is None and width % heads:
        raise SourceError(
            f"config.json: hidden_size {width} is not a multiple of num_attention_heads {heads}. Mend it."
        )
    if heads % kv_heads:
        raise SourceError(
            f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}. Mend it."
        )
    return Decoder(
        layers=integer(config, "num_hidden_layers", 1),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=integer(config, "head_dim", 2, default=width // heads),
        vocab_size=integer(config, "vocab_size", 1),
        max_positions=integer(config, "max_position_embeddings", 1),
    )


def build(graph: DecoderGraph, config: dict[str, Any]) -> None:
    """Write the whole model: LLaMA, or a model of its shape; `qkv_bias` is not of a config.json but of Qwen2."""
    decoder, width = graph.decoder, config["hidden_size"]
    x = graph.embedding("model.embed_tokens", graph.input_ids, decoder.vocab_size, width)
    graph.rotary_angles(*frequencies(config["rope_parameters"], decoder.head_dim, decoder.max_positions))
    for index in range(decoder.layers):
        path = f"model.layers.{index}"
        with graph.module(path):
            x = graph.block_input(index, x, width)
            inside = graph.rms_norm(f"{path}.input_layernorm", x, width, config["rms_norm_eps"])
            x = graph.add(x, _attention(graph, config, f"{path}.self_attn", inside))
            inside = graph.rms_norm(f"{path}.post_attention_layernorm", x, width, config["rms_norm_eps"])
            x = graph.block_output(graph.add(x, _feed_forward(graph, config, f"{path}.mlp", inside)))
    graph.finish(x, width, lambda last: graph.rms_norm("model.norm", last, width, config["rms_norm_eps"]))


def _attention(graph: DecoderGraph, config: dict[str, Any], path: str, x: ir.Value) -> ir.Value:
    decoder, width = graph.decoder, config["hidden_size"]
    bias = config.get("attention_bias", False)  # of all four
    queried = decoder.heads * decoder.head_dim
    with graph.module(path):
        queries, keys, values = (
            graph.heads(
                graph.linear(
                    f"{path}.{name}", x, width, heads * decoder.head_dim, bias or config.get("qkv_bias", False)
                ),
                heads,
            )
            for name, heads in (("q_proj", decoder.heads), ("k_proj", decoder.kv_heads), ("v_proj", decoder.kv_heads))
        )
        queries, keys = graph.rotate(queries), graph.rotate(keys)
        attended = graph.attention(queries, keys, values, decoder.head_dim**-0.5)
        return graph.linear(f"{path}.o_proj", attended, queried, width, bias)


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
