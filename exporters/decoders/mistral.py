"""Mistral (Jiang et al., 2023): LLaMA's shape, with attention to a window of the last tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from intaglio.bundle import Decoder
from intaglio.exporters.checkpoints.config import integer
from intaglio.exporters.decoders import llama


def describe(config: dict[str, Any]) -> Decoder:
    """LLaMA's record; a window as long as the positions is none. The runtime puts it into the mask."""
    decoder = llama.describe(config)
    if (
        config.get("sliding_window") is None
        or (window := integer(config, "sliding_window", 1)) >= decoder.max_positions
    ):
        return decoder
    return msgspec.structs.replace(decoder, sliding_window=window)


FAMILY = replace(llama.FAMILY, model_type="mistral", architecture="MistralForCausalLM", describe=describe)
