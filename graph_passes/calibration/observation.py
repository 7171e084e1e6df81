"""Statistics of the activations of one batch: the task that `calibrate` divides its work into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.errors import GraphError
from intaglio.graph_passes.calibration.activation_statistics import Floats, Statistics
from intaglio.graph_passes.calibration.real_tokens import Length, axes_of, real_parts
from intaglio.graph_passes.calibration.stretch import Stretch, run_stretch
from intaglio.plugins.nodes import lengths
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.text.inputs import MASK


@dataclass(frozen=True)
class Observed:
    """An activation: its name, its lengths in the graph, its node for messages, and the settings of `Statistics`."""

    name: str
    stated: Sequence[Length] | None
    producer: str
    method: str
    percentile: float
    bins: int

    @classmethod
    def of(cls, value: ir.Value, seen: Statistics) -> Self:
        """Describe `value`, whose statistics are `seen`."""
        producer = value.producer()
        where = f" of {producer.op_type} {producer.name!r}" if producer is not None else ""
        return cls(str(value.name), lengths(value), where, seen.method, seen.percentile, seen.bins)


def observe(
    stretch: Stretch, feeds: Mapping[str, Array], observed: Sequence[Observed], axes: Sequence[Length] | None
) -> list[Statistics]:
    """Run `stretch` on a batch; return the statistics of each activation.

    `axes`: the names of the axes of the attention mask, whose padding is ignored. Raises `GraphError` for NaN and
    infinities.
    """
    arrays = {**feeds, **run_stretch(stretch, feeds)}
    mask = feeds[MASK] != 0 if axes is not None else None
    return [_statistics(each, arrays[each.name], mask, axes) for each in observed]


def _statistics(
    observed: Observed,
    array: Array,
    mask: npt.NDArray[np.bool_] | None,
    names: Sequence[Length] | None,
) -> Statistics:
    stated = observed.stated
    if stated is not None and len(stated) != array.ndim:
        stated = None  # the graph's shape is wrong
    channels = bool(stated and isinstance(stated[-1], int))
    numbers: Floats = array.astype(np.float64 if array.dtype == np.float64 else np.float32, copy=False)
    parts = iter([numbers])
    if mask is not None and names is not None:
        parts = real_parts(numbers, axes_of(numbers, stated, mask, names), mask)
    seen = Statistics(observed.method, observed.percentile, observed.bins, channel_sums=[])
    try:
        for part in parts:
            seen.add(part, channels)
    except ValueError as error:
        raise GraphError(
            f"calibrate: the activation {observed.name!r}{observed.producer} is {error}, expected finite numbers. "
            "Fix the model or the calibration data; a float16 graph may overflow where the float32 one does not."
        ) from error
    return seen
