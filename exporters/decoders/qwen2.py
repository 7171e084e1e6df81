"""Qwen2 (Yang et al., 2024): LLaMA's shape, with biases of queries, keys and values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from intaglio.bundle import Decoder
from intaglio.errors import SourceError
from intaglio.exporters.decoders import llama
from intaglio.exporters.decoders.graph import DecoderGraph


def describe(config: dict[str, Any]) -> Decoder:
    """LLaMA's record. Raises `SourceError` for windows, which Qwen2 has in some of its layers only."""
    if config["use_sliding_window"]:
        raise SourceError(
            "config.json: use_sliding_window is true; windows in some layers only are not supported. "
            "Set it to false where texts stay within the window."
        )
    return llama.describe(config)


def build(graph: DecoderGraph, config: dict[str, Any]) -> None:
    """Write the whole model."""
    llama.build(graph, {**config, "qkv_bias": True})


FAMILY = replace(llama.FAMILY, model_type="qwen2", architecture="Qwen2ForCausalLM", describe=describe, build=build)
