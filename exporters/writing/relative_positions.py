"""Relative position biases of T5 (Raffel et al., 2020, section 2.1): one number per head and distance.

Small distances have one bucket each, larger ones share buckets that grow with the distance, and all beyond the
furthest are in the last bucket. The checkpoint has one row per bucket. The graph looks distances up in a table of all
distances, which is built from constants, so that a runtime folds it once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.exporters.writing.graph_writer import GraphWriter


@dataclass(frozen=True)
class RelativePositions:
    """The buckets of one part of a model.

    `furthest` is the distance from which all share the last bucket; `both_ways` is whether tokens also attend to later
    ones, which then use half of the buckets.
    """

    buckets: int
    furthest: int
    both_ways: bool

    def numbers(self) -> npt.NDArray[np.int64]:
        """The bucket of each distance, int64 [furthest + 1]: 0, 1, ... back from a token.

        With `both_ways` int64 [2 · furthest + 1]: key position minus query position, from -furthest on.
        """
        import torch  # its float32 logarithm decides which bucket a distance at a border falls into

        count = self.buckets // 2 if self.both_ways else self.buckets
        exact = count // 2
        distances = torch.arange(self.furthest + 1)
        part = torch.log(distances.clamp(min=exact).float() / exact) / math.log(self.furthest / exact)
        shared = (exact + (part * (count - exact)).long()).clamp(max=count - 1)
        back = torch.where(distances < exact, distances, shared)
        if self.both_ways:
            back = torch.cat([back.flip(0), count + back[1:]])
        return np.asarray(back.numpy())

    def bias(self, graph: GraphWriter, path: str, queries: ir.Value, keys: ir.Value, heads: int) -> ir.Value:
        """The bias added to the scores, [batch, heads, queries, keys], from the embedding at `path`.

        `queries` int64 [batch, queries] and `keys` int64 [batch, keys] are positions.
        """
        with graph.module(path):
            weight = graph.weight(f"{path}.weight", [self.buckets, heads])
            rows = graph.op("Gather", [weight, graph.constant(f"{path}.buckets", self.numbers())], axis=0)
            table = graph.op("Transpose", [rows], perm=[1, 0])  # [heads, distances]
            queries = graph.op("Unsqueeze", [queries, graph.constant("axis_2", [2])])
            keys = graph.op("Unsqueeze", [keys, graph.constant("axis_1", [1])])
            furthest = graph.constant(f"{path}.furthest", self.furthest)
            if self.both_ways:
                nearest = graph.constant(f"{path}.furthest_back", -self.furthest)
                distances = graph.op("Clip", [graph.op("Sub", [keys, queries]), nearest, furthest])
                distances = graph.op("Add", [distances, furthest])
            else:
                distances = graph.op("Clip", [graph.op("Sub", [queries, keys]), graph.constant("none", 0), furthest])
            found = graph.op("Gather", [table, distances], axis=1)  # [heads, batch, queries, keys]
            return graph.op("Transpose", [found], perm=[1, 0, 2, 3])
