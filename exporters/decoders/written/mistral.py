"""Mistral (Jiang et al., 2023): like LLaMA, with sliding-window attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from intaglio.bundle.bundle import Decoder
from intaglio.exporters.decoders.windows import with_window
from intaglio.exporters.decoders.written import llama


def describe(config: dict[str, Any]) -> Decoder:
    """LLaMA's entry, with the window."""
    return with_window(llama.describe(config), config)


FAMILY = replace(llama.FAMILY, model_type="mistral", architecture="MistralForCausalLM", describe=describe)
