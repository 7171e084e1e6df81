"""Trained drafts beside a checkpoint: drafts.json says what they are, drafts.safetensors holds their matrices.

Two kinds, both with one matrix [width, width] for each step ahead, and the model's own head:

"hidden-transfer"  before the block `layers[s]` the states x of a token become pseudo hidden states x + x·W of the token
                   s + 1 places further on, which go through the remaining blocks ("Parallel Decoding via Hidden
                   Transfer for Lossless Large Language Model Acceleration", section 3.2; its linear projection is
                   1 + W, and W without the 1 is a matrix that tables of few values can hold)
"medusa"           the last states x of a token become x + SiLU(x·W), for comparison (Cai et al., "Medusa"; Medusa-1, a
                   residual block for each step, here without a head of its own)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from intaglio.errors import SourceError, one_line

RECORD = "drafts.json"
MATRICES = "drafts.safetensors"
HIDDEN_TRANSFER, MEDUSA = "hidden-transfer", "medusa"
Kind = Literal["hidden-transfer", "medusa"]
FIRST_PART, LAST_PART = 0.5, 0.8  # of the depth, where the first and the last step stand (the paper's figures 5 and 6)


class Drafts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of drafts.json."""

    kind: Kind
    steps: int  # tokens that are drafted after a token, besides the one that the model itself predicts
    layers: tuple[int, ...] = ()  # of hidden transfer: the block, from 0, that each step stands before


HEAD_ROWS = "head_rows"  # the axis of what goes through the head: the tokens that logits are wanted of, and the drafts


def rows_after(steps: int) -> str:
    """The axis of a graph's states once so many steps of hidden transfer stand behind the tokens."""
    return f"rows_after_{steps}"


def draft_axes(drafts: int, tokens: int, wanted: int, drafting: int) -> dict[str, int]:
    """The lengths of the axes that graphs have for drafts, where they draft after `drafting` of the tokens."""
    after = {rows_after(steps): tokens + steps * drafting for steps in range(1, drafts + 1)}
    return after | {HEAD_ROWS: wanted + drafts * drafting, "drafting": drafting, "drafted": drafts * drafting}


def matrix_path(step: int) -> str:
    """The path of the linear layer of a step, from 0; its weight [outputs, inputs] lies under `<path>.weight`."""
    return f"drafts.{step}"


def default_layers(steps: int, depth: int) -> tuple[int, ...]:
    """Blocks from the middle of a model of `depth` blocks on, evenly to 8/10 of it, one for each step."""
    between = (LAST_PART - FIRST_PART) / max(steps - 1, 1)
    return tuple(int(depth * (FIRST_PART + between * step)) for step in range(steps))


def layers_fault(layers: Sequence[int], steps: int, depth: int) -> str | None:
    """What is wrong with `layers` for a model of `depth` blocks, or None."""
    if len(layers) != steps:
        return f"{len(layers)} transfer layers {list(layers)} for {steps} steps ahead, expected one for each"
    if list(layers) != sorted(layers) or not 0 <= layers[0] <= layers[-1] < depth:
        return f"transfer layers {list(layers)}, expected 0 to {depth - 1}, none before the one of an earlier step"
    return None


def read_drafts(folder: Path, depth: int) -> Drafts | None:
    """The drafts in `folder`, for its model of `depth` blocks, or None where there are none. Raises `SourceError`."""
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        drafts = msgspec.json.decode(path.read_bytes(), type=Drafts)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = one_line(error, 120)
        raise SourceError(f"{path}: no readable record of drafts ({reason}). Train the drafts again.") from error
    fault = f"steps {drafts.steps}, expected at least 1" if drafts.steps < 1 else None
    if drafts.kind == HIDDEN_TRANSFER:
        fault = fault or layers_fault(drafts.layers, drafts.steps, depth)
    if fault:
        raise SourceError(f"{path}: {fault}. Train the drafts again.")
    if not (folder / MATRICES).is_file():
        raise SourceError(f"{folder}: holds {RECORD} but no {MATRICES}. Copy the folder whole, or train again.")
    return drafts
