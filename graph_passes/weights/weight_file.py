"""Weights that a pass has made, in a file until the graph is written: together they may not fit into memory."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.bundle.model_file import ALIGNMENT
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
        if not hasattr(self, "_folder"):
            self._folder = self._open.enter_context(scratch_directory("weights"))
        path = self._folder / "weights"
        with storage_errors(path), path.open("ab") as file:
            file.write(bytes(-file.tell() % ALIGNMENT))
            offset = file.tell()
            np.ascontiguousarray(array).tofile(file)
        return _FileTensor(self, path.name, offset, array, name)


class _FileTensor(ir.ExternalTensor):
    """A tensor in a `WeightFile`, which exists as long as this."""

    def __init__(self, file: WeightFile, location: str, offset: int, array: npt.NDArray[Any], name: str):
        dtype = ir.DataType.from_numpy(array.dtype)
        super().__init__(
            location, offset, array.nbytes, dtype, shape=ir.Shape(array.shape), name=name, base_dir=file._folder
        )
        self._file = file
