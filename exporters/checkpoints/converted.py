"""The result of `convert`."""

from __future__ import annotations

import msgspec


class Converted(msgspec.Struct):
    """The written checkpoint; `checkpoint` and `seconds` are set at the end."""

    architecture: str  # model_type of config.json
    parameters: int
    tokens: int  # of the vocabulary; a recogniser's with the blank
    left_out: list[str] = []  # tensors of the source that are not part of the architecture
    checkpoint: str = ""
    seconds: float = 0.0
