"""Graph weights that stay in the checkpoint's files until they are written out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.tensor_adapters import TorchTensor, from_torch_dtype

from intaglio.bundle.half_precision import OutOfRange, convert
from intaglio.errors import SourceError
from intaglio.exporters.files.computed_tensor import FloatTensor
from intaglio.exporters.files.safetensors_file import MappedTensor

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]


class Rounding:
    """Casts weights to the graph's dtype, and counts, per weight, the values beyond the range of float16."""

    def __init__(self) -> None:
        self._found: dict[str, OutOfRange] = {}  # by name: a weight may be cast several times

    def cast(self, array: Array, name: str, dtype: ir.DataType) -> Array:
        """`array` in `dtype`; finite numbers stay finite. Raises `SourceError` where that is impossible."""
        if dtype == ir.DataType.FLOAT16:
            self._found[name] = OutOfRange()
            return convert(array, self._found[name])
        with np.errstate(over="ignore"):
            result = array.astype(dtype.numpy())
        if array.dtype == np.float64 and np.isinf(result).sum() > np.isinf(array).sum():
            raise SourceError(f"{name}: float64 numbers beyond the range of {dtype.numpy().name}. Scale that weight.")
        return result

    def notes(self) -> list[str]:
        """One line for each kind of numbers out of range."""
        return summed(self._found.values()).reasons()


def summed(found: Iterable[OutOfRange]) -> OutOfRange:
    """The sums of several counts."""
    total = OutOfRange()
    for each in found:
        total.clamped += each.clamped
        total.raised += each.raised
    return total


def in_file(mapped: MappedTensor, name: str) -> ir.ExternalTensor:
    """The tensor as a range of its file, which is copied without being loaded into memory."""
    tensor = mapped.tensor
    return ir.ExternalTensor(
        str(mapped.path.absolute()),  # with a folder of its own, onnx_ir would reject links, as in the hub's cache
        mapped.offset,
        tensor.nbytes,
        from_torch_dtype(tensor.dtype),
        shape=ir.Shape(tensor.shape),
        name=name,
    )


def weight(
    tensor: torch.Tensor, mapped: MappedTensor | None, name: str, dtype: ir.DataType, rounding: Rounding
) -> ir.TensorProtocol:
    """A real parameter as a graph's weight of `dtype`; a cast is computed on every access, and not kept."""
    if from_torch_dtype(tensor.dtype) == dtype:
        return TorchTensor(tensor, name)

    def cast() -> ir.TensorProtocol:
        source = in_file(mapped, name) if mapped else TorchTensor(tensor, name)
        return ir.Tensor(rounding.cast(source.numpy(), name, dtype), name=name)

    return ir.LazyTensor(cast, dtype, ir.Shape(tensor.shape), name=name)


def numbers(stored: FloatTensor, name: str) -> Array:
    """The numbers of a tensor, read or computed now."""
    if isinstance(stored, MappedTensor):
        return in_file(stored, name).numpy()
    return stored.tensor.numpy()


def stored_weight(
    stored: FloatTensor, name: str, dtype: ir.DataType, transposed: bool, rounding: Rounding
) -> ir.TensorProtocol:
    """A tensor of a checkpoint as a graph's weight of `dtype`; all that is computed is when it is written."""
    shape, found = list(stored.shape), from_torch_dtype(stored.dtype)
    if isinstance(stored, MappedTensor) and found == dtype and not transposed:
        return in_file(stored, name)

    def copy() -> ir.TensorProtocol:
        array = numbers(stored, name)
        array = array if found == dtype else rounding.cast(array, name, dtype)
        return ir.Tensor(np.ascontiguousarray(array.T if transposed else array), name=name)

    return ir.LazyTensor(copy, dtype, ir.Shape(shape[::-1] if transposed else shape), name=name)
