"""Weights that a pass has made, in a file until the graph is written: together they may not fit into memory."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.bundle.model_file import append
from intaglio.errors import storage_errors
from intaglio.processes.temporary import scratch_directory

LEAST = 1 << 16  # bytes of a tensor that is worth a place in the file


class WeightFile:
    """A file in the temporary directory, made for its first tensor and removed after its last one."""

    def __init__(self) -> None:
        self._open = ExitStack()
        weakref.finalize(self, self._open.close)

    def stored(self, array: npt.NDArray[Any], name: str) -> ir.TensorProtocol:
        """Return `array` as a tensor, from `LEAST` bytes on in the file. Raises `StorageError`."""
        if array.nbytes < LEAST:
            return ir.tensor(array, name=name)
        with storage_errors(self.path), self.path.open("ab") as file:
            offset = append(file, ir.tensor(np.ascontiguousarray(array)))
        return _FileTensor(self, offset, array, name)

    @cached_property
    def path(self) -> Path:
        """The file, in a folder that is made by the first use."""
        return self._open.enter_context(scratch_directory("weights")) / "weights"


class _FileTensor(ir.ExternalTensor):
    """A tensor in a `WeightFile`, which exists as long as this."""

    def __init__(self, file: WeightFile, offset: int, array: npt.NDArray[Any], name: str):
        dtype, shape = ir.DataType.from_numpy(array.dtype), ir.Shape(array.shape)
        super().__init__(file.path.name, offset, array.nbytes, dtype, shape=shape, name=name, base_dir=file.path.parent)
        self._file = file
