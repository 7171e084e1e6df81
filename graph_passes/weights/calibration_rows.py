"""Calibration batches for the passes that choose weights by their input activations."""

from __future__ import annotations

from intaglio.bundle.bundle import Calibration
from intaglio.errors import UsageError
from intaglio.graph_passes.calibration.data import OPTION, CalibrationData, count_tokens
from intaglio.graph_passes.contract import Counts
from intaglio.runtime.engines.engine import Array

LEAST_TOKENS = 64  # fewer are meaningless for a layer with hundreds of inputs
FEW_TOKENS = 4096


def load_batches(
    name: str, data: CalibrationData, samples: int, batch_size: int, counts: Counts
) -> tuple[list[dict[str, Array]], Calibration]:
    """Load the batches of feeds for the pass `name`, and their record for the manifest.

    Raises `UsageError` if there is too little text. An image or a recording has hundreds of positions: one is enough.
    """
    batches, used = data.load(samples, batch_size)
    tokens = count_tokens(batches)
    if 0 < tokens < LEAST_TOKENS:
        raise UsageError(
            f"{OPTION} {data.path}: {tokens} tokens, pass {name} expects at least {LEAST_TOKENS}, better about "
            "ten thousand. Give more text."
        )
    if 0 < tokens < FEW_TOKENS:
        counts.leave(f"{tokens} tokens are few to measure weights on: give about ten thousand")
    return batches, Calibration(data.path.name, used.sha256, used.samples, tokens, name)
