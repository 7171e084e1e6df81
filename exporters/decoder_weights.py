"""The weights of a decoder's checkpoint, found by name and shape, and not read. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intaglio.errors import SourceError
from intaglio.exporters.family import DecoderFamily
from intaglio.exporters.safetensors_file import MappedTensor
from intaglio.exporters.weights import in_file, mapped_weight

HEAD = "lm_head"


class DecoderWeights:
    """The tensors of a checkpoint; what the graph asks for and they lack is told by `check`.

    A checkpoint that was saved without the head leaves the path of the model below it out of its names; here they
    are whole. `tied` says whether the head's weight is `table`, the embedding's; see `transformers`' `tie_weights`.
    """

    def __init__(self, folder: Path, tensors: Mapping[str, MappedTensor], family: DecoderFamily, tie: bool):
        """`tie`: whether config.json says that the head's weight is the embedding's."""
        whole = any(name.startswith(f"{family.base}.") for name in tensors)
        self._folder = folder
        self._blocks = family.blocks
        self._tensors = {
            name if whole or name == f"{HEAD}.weight" else f"{family.base}.{name}": mapped
            for name, mapped in tensors.items()
        }
        self._used: set[str] = set()
        self._missing: list[str] = []
        self.table = f"{family.embedding}.weight"
        self.tied = tie and self._one(f"{HEAD}.weight", self.table)

    def _one(self, head: str, table: str) -> bool:
        """Whether the head and the embedding, which are to be tied, are: not if the checkpoint has two that differ.

        Of tied ones a checkpoint may hold either, so the head may have to stand for the embedding.
        """
        if head not in self._tensors:
            return True
        first, second = self._tensors[head], self._tensors.setdefault(table, self._tensors[head])
        if first.tensor.shape != second.tensor.shape:
            return False
        return first is second or np.array_equal(in_file(first, head).numpy(), in_file(second, table).numpy())

    def tensor(
        self, name: str, called: str, shape: Sequence[int], dtype: ir.DataType, transposed: bool
    ) -> ir.TensorProtocol:
        """The tensor `name` of `shape` as the graph's weight `called` of `dtype`, turned where `transposed`."""
        found = self._tensors.get(name)
        self._used.add(name)
        if found is None or list(found.tensor.shape) != list(shape):
            got = "missing" if found is None else f"got {list(found.tensor.shape)}"
            self._missing.append(f"{name} ({got}, expected {list(shape)})")
            placed = list(shape)[::-1] if transposed else list(shape)
            return ir.LazyTensor(_never, dtype, ir.Shape(placed), name=called)
        return mapped_weight(found, called, dtype, transposed)

    def check(self) -> None:
        """Raise `SourceError` for weights that are missing, of another shape, or in blocks too many."""
        if self._missing:
            raise SourceError(
                f"{self._folder}: {len(self._missing)} weights are missing or have another shape than config.json "
                f"says: {', '.join(self._missing[:2])}{'…' if self._missing[2:] else ''}. "
                "Compare config.json with the original, or download the checkpoint again."
            )
        blocks = {".".join(name.split(".")[: self._blocks.count(".") + 2]) for name in self._used}
        unused = [name for name in self._tensors if name.startswith(f"{self._blocks}.")]
        unused = [name for name in unused if ".".join(name.split(".")[: self._blocks.count(".") + 2]) not in blocks]
        if unused:
            raise SourceError(
                f"{self._folder}: {len(unused)} weights belong to layers that config.json does not count "
                f"({unused[0]}…). Mend its number of layers."
            )


def _never() -> ir.TensorProtocol:
    raise AssertionError("a weight that is missing was read")
