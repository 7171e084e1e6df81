"""Qwen2 (Yang et al., 2024): like LLaMA, with biases for queries, keys and values."""

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
    """LLaMA's projections with biases; the output projection has none."""
    return llama.projected(graph, {**config, "attention_bias": True}, path, x)


def build(graph: DecoderGraph, config: dict[str, Any]) -> None:
    """Write the whole model."""
    llama.build(graph, config, projected)


FAMILY = replace(llama.FAMILY, model_type="qwen2", architecture="Qwen2ForCausalLM", describe=describe, build=build)
