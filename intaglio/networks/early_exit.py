"""A decoder that was trained to predict also after its first blocks, or after every block: early_exit.json.

The file is in the checkpoint's folder. The final norm and the head of the whole model are used; nothing else is added.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from intaglio.errors import SourceError
from intaglio.files.json_object import read_record

RECORD = "early_exit.json"
EVERY: Literal["every"] = "every"
PART = 0.25  # of the blocks, before the exit
NEVER = 2.0  # a saturation threshold that no cosine exceeds


class EarlyExit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of early_exit.json."""

    layer: int | Literal["every"]  # blocks before the exit, or one after every block


def default_layer(depth: int) -> int:
    """A quarter of a model of `depth` blocks, at least one block."""
    return max(1, round(depth * PART))


def layer_error(layer: int | Literal["every"], depth: int) -> str | None:
    """The error of an exit after `layer` of `depth` blocks, or None."""
    if depth < 2:
        return f"the model has {depth} block, an early exit needs at least 2"
    return None if layer == EVERY or 1 <= layer < depth else f"exit after {layer} blocks, expected 1 to {depth - 1}"


def read_early_exit(folder: Path, depth: int) -> EarlyExit | None:
    """The early exits of the model of `depth` blocks in `folder`, or None. Raises `SourceError`."""
    path = folder / RECORD
    if not path.is_file():
        return None
    record = read_record(path, EarlyExit, "Train it again.")
    if problem := layer_error(record.layer, depth):
        raise SourceError(f"{path}: {problem}. Train it again.")
    return record
