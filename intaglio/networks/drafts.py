"""Trained drafts of a checkpoint: drafts.json describes them, drafts.safetensors holds their matrices.

There are two kinds, both with one matrix [width, width] per step ahead, and the model's own head:

"hidden-transfer"  before the block `layers[s]` the states x of a token become pseudo hidden states x + x·W of the token
                   s + 1 positions ahead, which go through the remaining blocks ("Parallel Decoding via Hidden
                   Transfer for Lossless Large Language Model Acceleration", section 3.2; its linear projection is
                   1 + W; W without the 1 can be stored in small lookup tables)
"medusa"           the last states x of a token become x + SiLU(x·W), for comparison (Cai et al., "Medusa"; Medusa-1, a
                   residual block per step, here without a separate head)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from intaglio.bundle.manifest import MAX_DRAFTS
from intaglio.errors import SourceError
from intaglio.files.json_object import read_record
from intaglio.networks.layer_kinds import CONVOLUTION, layer_kinds

RECORD = "drafts.json"
MATRICES = "drafts.safetensors"
HIDDEN_TRANSFER, MEDUSA = "hidden-transfer", "medusa"
Kind = Literal["hidden-transfer", "medusa"]
FIRST_PART, LAST_PART = 0.5, 0.8  # of the depth: layers of the first and the last step (the paper's figures 5 and 6)


class Drafts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of drafts.json."""

    kind: Kind
    steps: int  # tokens drafted after a token, in addition to the one that the model itself predicts
    layers: tuple[int, ...] = ()  # hidden transfer: the block, from 0, before which each step is inserted


def matrix_path(step: int) -> str:
    """The path of the linear layer of a step, from 0; its weight [outputs, inputs] is `<path>.weight`."""
    return f"drafts.{step}"


def default_layers(steps: int, depth: int) -> tuple[int, ...]:
    """One block per step, evenly spaced from the middle of a model of `depth` blocks to 8/10 of it."""
    between = (LAST_PART - FIRST_PART) / max(steps - 1, 1)
    return tuple(int(depth * (FIRST_PART + between * step)) for step in range(steps))


def layers_error(layers: Sequence[int], steps: int, depth: int) -> str | None:
    """The error in `layers` for a model of `depth` blocks, or None."""
    if len(layers) != steps:
        return f"{len(layers)} transfer layers {list(layers)} for {steps} steps ahead, expected one per step"
    if list(layers) != sorted(layers) or not 0 <= layers[0] <= layers[-1] < depth:
        return f"transfer layers {list(layers)}, expected 0 to {depth - 1} in ascending order"
    return None


def unsuited(kind: str, config: Any) -> str | None:
    """Why the layers of a text model's configuration cannot compute drafts of `kind`, and what can; or None."""
    if CONVOLUTION in layer_kinds(config):  # they see the tokens in the order of a step
        return (
            "layers of convolutions, which cannot follow the paths of a draft tree. Use speculative decoding with a "
            "smaller model, or n-grams, which need no training."
        )
    if kind == HIDDEN_TRANSFER and getattr(config, "num_kv_shared_layers", None):
        return "layers that share the caches of earlier ones, where pseudo states cannot enter. Train Medusa heads."
    return None


def read_drafts(folder: Path, depth: int) -> Drafts | None:
    """The drafts in `folder` for its model of `depth` blocks, or None. Raises `SourceError`."""
    path = folder / RECORD
    if not path.is_file():
        return None
    drafts = read_record(path, Drafts, "Train the drafts again.")
    problem = None if 1 <= drafts.steps <= MAX_DRAFTS else f"steps {drafts.steps}, expected 1 to {MAX_DRAFTS}"
    if drafts.kind == HIDDEN_TRANSFER:
        problem = problem or layers_error(drafts.layers, drafts.steps, depth)
    if problem:
        raise SourceError(f"{path}: {problem}. Train the drafts again.")
    if not (folder / MATRICES).is_file():
        raise SourceError(f"{folder}: has {RECORD} but no {MATRICES}. Copy the whole folder again, or train again.")
    return drafts
