"""Sliding-window attention: its settings in config.json, and which of them are supported."""

from __future__ import annotations

from typing import Any

import msgspec

from intaglio.bundle.bundle import Decoder
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.config import integer

FULL, SLIDING = "full_attention", "sliding_attention"  # the kinds of layers, as transformers names them


def with_window(decoder: Decoder, config: dict[str, Any]) -> Decoder:
    """`decoder` with the window of config.json, if any. The runtime applies it in the mask.

    A window as long as the maximum length has no effect. Raises `SourceError` if only some layers have a window: all
    layers share one mask.
    """
    windowed = config.get("sliding_window") is not None
    kinds = set(config.get("layer_types") or [SLIDING if windowed else FULL])
    if kinds == {FULL}:
        return decoder
    if kinds != {SLIDING}:
        raise SourceError(
            f"config.json: layer_types are {', '.join(sorted(kinds))}; windows in only some layers are not supported. "
            "If your sequences are shorter than the window, set use_sliding_window to false and remove layer_types."
        )
    window = integer(config, "sliding_window", 1)
    return decoder if window >= decoder.max_positions else msgspec.structs.replace(decoder, sliding_window=window)
