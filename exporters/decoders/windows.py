"""Sliding-window attention: its settings in config.json."""

from __future__ import annotations

from typing import Any

import msgspec

from intaglio.bundle.bundle import Decoder
from intaglio.errors import SourceError
from intaglio.exporters.files.config import integer
from intaglio.networks.layer_kinds import FULL, SLIDING


def with_window(decoder: Decoder, config: dict[str, Any]) -> Decoder:
    """`decoder` with the window of config.json, if any. The runtime applies it in the mask.

    A window as long as the maximum length has no effect. All layers have the same, or none; see `DecoderFamily.takes`.
    Raises `SourceError` for an invalid window.
    """
    windowed = config.get("sliding_window") is not None
    kinds = set(config.get("layer_types") or [SLIDING if windowed else FULL])
    if kinds == {FULL}:
        return decoder
    window = integer(config, "sliding_window", 1)
    if kinds != {SLIDING}:
        raise SourceError(
            f"config.json: layer_types are {', '.join(sorted(kinds))}, expected {FULL} or {SLIDING}. Fix layer_types."
        )
    return decoder if window >= decoder.max_positions else msgspec.structs.replace(decoder, sliding_window=window)
