"""A decoder that was trained to predict after its first blocks too, or after each: early_exit.json says which.

The file lies beside the checkpoint. Final norm and head are those of the whole model, and nothing else is added.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from intaglio.errors import SourceError, one_line

RECORD = "early_exit.json"
EVERY: Literal["every"] = "every"
PART = 0.25  # of the blocks, before the exit
NEVER = 2.0  # a threshold of saturation that no cosine exceeds


class EarlyExit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of early_exit.json."""

    layer: int | Literal["every"]  # blocks before the exit, or one after every block


def default_layer(depth: int) -> int:
    """A quarter of a model of `depth` blocks, and at least one of them."""
    return max(1, round(depth * PART))


def layer_fault(layer: int | Literal["every"], depth: int) -> str | None:
    """What is wrong with an exit after `layer` of `depth` blocks, or None."""
    if depth < 2:
        return f"the model has {depth} block, an early exit needs at least 2"
    return None if layer == EVERY or 1 <= layer < depth else f"exit after {layer} blocks, expected 1 to {depth - 1}"


def read_early_exit(folder: Path, depth: int) -> EarlyExit | None:
    """The exits of the model of `depth` blocks in `folder`, if it has some. Raises `SourceError`."""
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        record = msgspec.json.decode(path.read_bytes(), type=EarlyExit)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = one_line(error, 120)
        raise SourceError(f"{path}: no readable record of an early exit ({reason}). Train it again.") from error
    if fault := layer_fault(record.layer, depth):
        raise SourceError(f"{path}: {fault}. Train it again.")
    return record
