"""The weights of a checkpoint that a graph is written from: found by name and shape, but not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intaglio.errors import SourceError
from intaglio.exporters.files.computed_tensor import FloatTensor
from intaglio.exporters.writing.weights import Rounding, numbers, stored_weight

HEAD = "lm_head"


class CheckpointWeights:
    """The tensors of a checkpoint by the names of its modules; `check` reports those that a graph needs but lacks.

    `tied` is whether the head's weight is `table`, the embedding's; see `transformers`' `tie_weights`.
    """

    def __init__(
        self,
        folder: Path,
        tensors: Mapping[str, FloatTensor],
        blocks: Sequence[str],
        embedding: str,
        tie: bool,
        copies: Sequence[str] = (),
    ):
        """The paths of the modules.

        blocks     lists of blocks
        embedding  the token embedding
        tie        whether config.json ties the head's weight to the embedding's
        copies     modules that also read the embedding, unless the checkpoint has another weight for them
        """
        self._folder = folder
        self.rounding = Rounding()
        self._blocks = blocks
        self._tensors = dict(tensors)
        self._used: set[str] = set()
        self._missing: list[str] = []
        self.table = f"{embedding}.weight"
        self.tied = tie and self._one(f"{HEAD}.weight", self.table)
        self._copies = {path for path in copies if self._one(f"{path}.weight", self.table)}

    def table_of(self, path: str) -> str:
        """The name of the weight that the embedding at `path` reads."""
        return self.table if path in self._copies else f"{path}.weight"

    def _one(self, head: str, table: str) -> bool:
        """Whether the head and the embedding are really tied: not if the checkpoint has two different weights.

        A checkpoint may store either of two tied weights, so the head may have to serve as the embedding.
        """
        if head not in self._tensors:
            return True
        first, second = self._tensors[head], self._tensors.setdefault(table, self._tensors[head])
        if first.shape != second.shape:
            return False
        return first is second or np.array_equal(numbers(first, head), numbers(second, table))

    def tensor(
        self, name: str, called: str, shape: Sequence[int], dtype: ir.DataType, transposed: bool
    ) -> ir.TensorProtocol:
        """The tensor `name` of `shape` as the graph's weight `called` of `dtype`, transposed if `transposed`."""
        found = self._tensors.get(name)
        self._used.add(name)
        if found is None or list(found.shape) != list(shape):
            got = "missing" if found is None else f"got {list(found.shape)}"
            self._missing.append(f"{name} ({got}, expected {list(shape)})")
            placed = list(shape)[::-1] if transposed else list(shape)
            return ir.LazyTensor(_never, dtype, ir.Shape(placed), name=called)
        return stored_weight(found, called, dtype, transposed, self.rounding)

    def count(self) -> int:
        """The number of parameters in all weights that the graph uses, each weight counted once."""
        return sum(prod(self._tensors[name].shape) for name in self._used)

    def check_found(self) -> None:
        """Raise `SourceError` for weights requested so far that are missing or have another shape."""
        if self._missing:
            raise SourceError(
                f"{self._folder}: {len(self._missing)} weights are missing or do not have the shape in config.json: "
                f"{', '.join(self._missing[:2])}{'…' if self._missing[2:] else ''}. "
                "Compare config.json with the original, or download the checkpoint again."
            )

    def check(self) -> None:
        """Raise `SourceError` for weights that are missing, have another shape, or belong to unexpected blocks."""
        self.check_found()
        for blocks in self._blocks:
            depth = blocks.count(".") + 2
            used = {".".join(name.split(".")[:depth]) for name in self._used}
            unused = [name for name in self._tensors if name.startswith(f"{blocks}.")]
            unused = [name for name in unused if ".".join(name.split(".")[:depth]) not in used]
            if unused:
                raise SourceError(
                    f"{self._folder}: {len(unused)} weights belong to layers beyond those in config.json "
                    f"({unused[0]}…). Fix its number of layers."
                )


def _never() -> ir.TensorProtocol:
    raise AssertionError("a missing weight was read")
