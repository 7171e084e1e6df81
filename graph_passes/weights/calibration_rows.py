"""The calibration batches of the passes that choose weights by the activations they are multiplied with."""

from __future__ import annotations

from intaglio.bundle import Calibration
from intaglio.errors import UsageError
from intaglio.graph_passes.calibration import OPTION, CalibrationData, count_tokens
from intaglio.graph_passes.contract import Counts
from intaglio.runtime.engines.engine import Array

LEAST_TOKENS = 64  # fewer say nothing about a layer of hundreds of inputs
FEW_TOKENS = 4096


def load_batches(
    name: str, data: CalibrationData, samples: int, batch_size: int, counts: Counts
) -> tuple[list[dict[str, Array]], Calibration]:
    """The batches of feeds for the pass `name`, and what the manifest says of them.

    Raises `UsageError` for less text than can be learnt from.
    """
    batches, used = data.load(samples, batch_size)
    tokens = count_tokens(batches)
    if tokens < LEAST_TOKENS:
        raise UsageError(
            f"{OPTION} {data.path}: {tokens} tokens, pass {name} expects at least {LEAST_TOKENS}, and some ten "
            "thousand to do well. Give more text."
        )
    if tokens < FEW_TOKENS:
        counts.leave(f"{tokens} tokens are few to judge weights by: give some ten thousand")
    return batches, Calibration(data.path.name, used.sha256, used.samples, tokens, name)
