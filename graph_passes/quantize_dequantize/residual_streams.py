"""Residual streams: the sums of an encoder that normalises before its layers, which grow from block to block.

Some channels of such a stream become a thousand times as large as others, and 16 bits for all of them would leave few
levels for most, of which every further sum would lose a part. So these sums are not rounded: they are int32 at one
scale, the unit, and each term has 16 bits at scales that are the unit times a power of two, one for each channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.graph_passes.calibration.activation_statistics import calibrated
from intaglio.graph_passes.calibration.thresholds import MARGIN
from intaglio.graph_passes.graphs import constant

TERM = 2**15 - 1  # the largest magnitude of a term, at its scale
TOTAL = 2.0**30  # the largest sum of all terms, in units


@dataclass
class ResidualStream:
    """Sums that are terms of each other, and the terms from outside."""

    terms: list[ir.Value] = field(default_factory=list)

    def scales(self, term: ir.Value) -> npt.NDArray[np.float32]:
        """Return the scales of a term, [channels] or one: the unit times powers of two, for which 16 bits suffice."""
        seen = calibrated(term)
        largest = seen.absmax if seen.channel_absmax is None else seen.channel_absmax.astype(np.float64)
        power = np.ceil(np.log2(np.maximum(largest * MARGIN / TERM / self._unit, 1.0)))
        return (self._unit * 2.0**power).astype(np.float32)

    @property
    def _unit(self) -> float:
        """The unit, with which the sum of the largest values of all terms stays below `TOTAL`."""
        total = sum(calibrated(term).absmax for term in self.terms) or 1.0
        return float(np.float32(2 * MARGIN * total / TOTAL))  # a power of two rounded up is less than twice as large


def residual_streams(region: Sequence[ir.Node]) -> tuple[set[ir.Value], dict[ir.Node, ResidualStream]]:
    """Return the sums of an encoder that are not rounded, and the stream of each Add that makes one.

    They are sums of two activations with the same channels, used by LayerNormalization and by the next sum of the
    stream alone. An encoder that normalises its sums has none.
    """
    adds = {node.outputs[0]: node for node in region if _is_sum(node)}
    exact: set[ir.Value] = set()
    streams: dict[ir.Node, ResidualStream] = {}
    for total, node in adds.items():
        before = [value for value in node.inputs if value in exact]
        continues = any(user.outputs[0] in adds for user in _users(total)) and len(_users(total)) > 1
        if not _is_normalised(total, adds) or len(before) == 2 or not (before or continues):
            continue
        producer = before[0].producer() if before else None
        stream = ResidualStream() if producer is None else streams[producer]
        stream.terms += [value for value in node.inputs if value is not None and value not in exact]
        exact.add(total)
        streams[node] = stream
    return exact, streams


def _is_sum(node: ir.Node) -> bool:
    """Whether the node adds two values with the same known channels, neither of them a constant."""
    shapes = [None if value is None or constant(value) is not None else value.shape for value in node.inputs]
    channels = {None if shape is None or not shape else (len(shape), shape[-1]) for shape in shapes}
    known = len(channels) == 1 and all(each is not None and isinstance(each[1], int) for each in channels)
    return node.op_type == "Add" and node.domain == "" and known


def _users(value: ir.Value) -> list[ir.Node]:
    return [user for user, _ in value.uses()]


def _is_normalised(total: ir.Value, adds: Iterable[ir.Value]) -> bool:
    """Whether a sum is used by LayerNormalization and further sums alone."""
    kinds = {user.outputs[0] in adds or user.op_type == "LayerNormalization" for user in _users(total)}
    return kinds == {True} and not total.is_graph_output()
