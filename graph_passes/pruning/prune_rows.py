"""PruneRows: remove hidden channels of feed-forward networks, with the rows and columns of their matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio import interrupts
from intaglio.display.progress import track
from intaglio.errors import GraphError
from intaglio.graph_passes.contract import Counts, Need, PassInputs
from intaglio.graph_passes.lookup_tables.layers import sensitivities_of
from intaglio.graph_passes.pruning.feed_forward import FeedForward, find_feed_forward
from intaglio.graph_passes.weights.linear_layers import LinearLayer, linear_layers
from intaglio.graph_passes.weights.options import PruningPass
from intaglio.graph_passes.weights.uniform import Floats
from intaglio.sensitivity_file import Sensitivities

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PruneRows(PruningPass):
    """Remove a `fraction` of the hidden channels of each feed-forward network: the shapes in the file shrink.

    A channel is a row of the first matrix (of gate and up in SwiGLU), a number of their biases, and a column of the
    matrix after it. The result is the same as with these channels set to 0.

    1. `score="magnitude"` removes the rows of the smallest L2 norm, as "Exploring Methods for Efficient Large Language
       Model Inference", section 2.2, has it; "sensitivity" those whose removal changes the loss least: the smallest
       Σ sensitivity·weight² over rows and columns, which needs a file of sensitivities.
    2. The number of remaining channels is a multiple of `multiple`, as groups of weights and kernels require.
    3. Left: layers that match a pattern of `skip`, networks whose channels are not independent, shared weights, and
       attention heads, whose number is also a dimension of the KV cache.

    Raises `GraphError` for weights that are NaN or infinite, and for a pattern that names no layer.
    """

    name: ClassVar[str] = "prune_rows"
    fraction: float = 0.25
    score: Literal["magnitude", "sensitivity"] = "magnitude"
    multiple: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.multiple < 1:
            raise GraphError(f"prune_rows: multiple {self.multiple}: expected at least 1.")

    @property
    def needs(self) -> frozenset[Need]:
        """Sensitivities, if they are the score."""
        return frozenset({Need.SENSITIVITY} if self.score == "sensitivity" else ())

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        weighted = inputs.sensitivities if self.score == "sensitivity" else None
        layers = {layer.node: layer for layer in linear_layers(model, counts, self.skip, branches=True)}
        found = [find_feed_forward(layer, layers) for layer in layers.values()]
        networks = [each for each in found if isinstance(each, FeedForward)]
        for network in track(networks, self.name, total=len(networks)):
            with interrupts.deferred():
                self._prune(network, weighted, counts)
        if not networks:
            counts.leave("no feed-forward network: " + "; ".join(str(each) for each in found[:3]))

    def _prune(self, network: FeedForward, sensitivities: Sensitivities | None, counts: Counts) -> None:
        channels = network.channels
        kept = max(1, round((1 - self.fraction) * channels / self.multiple)) * self.multiple
        if kept >= channels:
            counts.leave(f"{network.name}: of {channels} channels {kept} would stay, a multiple of {self.multiple}")
            return
        scores = channel_scores(network, sensitivities)
        network.keep(np.sort(np.argsort(-scores, kind="stable")[:kept]))
        counts.add("networks")
        counts.add("channels removed", channels - kept)
        weights = (channels - kept) * (network.down.shape[0] + sum(layer.shape[1] for layer in network.ups))
        counts.add("weights removed", weights)
        counts.layers[network.name] = {"channels before": channels, "channels": kept}


def channel_scores(network: FeedForward, sensitivities: Sensitivities | None) -> Scores:
    """Return the score of each channel: squared L2 norm of its rows, or Σ sensitivity·weight² of all its weights."""
    rows = [_squares(layer, sensitivities).sum(axis=1, dtype=np.float64) for layer in network.ups]
    if sensitivities is not None:
        rows.append(_squares(network.down, sensitivities).sum(axis=0, dtype=np.float64))
    scores: Scores = np.sum(rows, axis=0)
    return scores


def _squares(layer: LinearLayer, sensitivities: Sensitivities | None) -> Floats:
    """Return weight² [N, K], times the sensitivities if they are given."""
    squares = np.square(layer.matrix())
    return squares if sensitivities is None else squares * sensitivities_of(layer, sensitivities)
