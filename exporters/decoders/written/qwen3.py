"""Qwen3 (Yang et al., 2025): like LLaMA, with an RMSNorm over each head of the queries and keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx_ir as ir

from intaglio.bundle.bundle import Decoder
from intaglio.exporters.decoders.windows import with_window
from intaglio.exporters.decoders.written import llama
from intaglio.exporters.decoders.written.graph import DecoderGraph


def describe(config: dict[str, Any]) -> Decoder:
    """LLaMA's entry, with the window. Raises `SourceError` if only some layers have one."""
    return with_window(llama.describe(config), config)


def projected(graph: DecoderGraph, config: dict[str, Any], path: str, x: ir.Value) -> llama.Heads:
    """LLaMA's projections, with normalised queries and keys."""
    queries, keys, values = llama.projected(graph, config, path, x)
    head_dim, epsilon = graph.decoder.head_dim, config["rms_norm_eps"]
    queries = graph.rms_norm(f"{path}.q_norm", queries, head_dim, epsilon)
    keys = graph.rms_norm(f"{path}.k_norm", keys, head_dim, epsilon)
    return queries, keys, values


def build(graph: DecoderGraph, config: dict[str, Any]) -> None:
    """Write the whole model."""
    llama.build(graph, config, projected)


FAMILY = replace(llama.FAMILY, model_type="qwen3", architecture="Qwen3ForCausalLM", describe=describe, build=build)
