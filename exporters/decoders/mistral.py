"""Mistral (Jiang et al., 2023): LLaMA's shape, with attention to a window of the last tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from intaglio.bundle import Decoder
from intaglio.exporters.decoders import llama
from intaglio.exporters.decoders.windows import with_window


def describe(config: dict[str, Any]) -> Decoder:
    """LLaMA's record, with the window."""
    return with_window(llama.describe(config), config)


FAMILY = replace(llama.FAMILY, model_type="mistral", architecture="MistralForCausalLM", describe=describe)
