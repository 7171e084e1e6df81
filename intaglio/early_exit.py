"""A decoder that was trained to predict after its first blocks too: early_exit.json beside the checkpoint says where.

Final norm and head are those of the whole model; nothing but this file is added to a checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from intaglio.errors import SourceError, one_line

RECORD = "early_exit.json"
PART = 0.25  # of the blocks, before the exit


class EarlyExit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of early_exit.json."""

    layer: int  # blocks before the exit


def default_layer(depth: int) -> int:
    """A quarter of a model of `depth` blocks, and at least one of them."""
    return max(1, round(depth * PART))


def layer_fault(layer: int, depth: int) -> str | None:
    """What is wrong with an exit after `layer` of `depth` blocks, or None."""
    if depth < 2:
        return f"the model has {depth} block, an early exit needs at least 2"
    return None if 1 <= layer < depth else f"exit after {layer} blocks, expected 1 to {depth - 1}"


def read_exit_layer(folder: Path, depth: int) -> int:
    """The blocks before the exit of the model of `depth` blocks in `folder`; 0: it has none. Raises `SourceError`."""
    path = folder / RECORD
    if not path.is_file():
        return 0
    try:
        layer = msgspec.json.decode(path.read_bytes(), type=EarlyExit).layer
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = one_line(error, 120)
        raise SourceError(f"{path}: no readable record of an early exit ({reason}). Train it again.") from error
    if fault := layer_fault(layer, depth):
        raise SourceError(f"{path}: {fault}. Train it again.")
    return layer
