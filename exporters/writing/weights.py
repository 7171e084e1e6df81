"""Graph weights that stay in the checkpoint's files until they are written out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from onnx_ir.tensor_adapters import TorchTensor, from_torch_dtype

from intaglio.exporters.checkpoints.safetensors_file import MappedTensor

if TYPE_CHECKING:
    import torch


def in_file(mapped: MappedTensor, name: str) -> ir.ExternalTensor:
    """The tensor as a range of its file, which is copied without being loaded into memory."""
    tensor, path = mapped.tensor, mapped.path.resolve()  # the hub's cache contains symbolic links to its files
    return ir.ExternalTensor(
        path.name,
        mapped.offset,
        tensor.nbytes,
        from_torch_dtype(tensor.dtype),
        shape=ir.Shape(tensor.shape),
        name=name,
        base_dir=path.parent,
    )


def weight(tensor: torch.Tensor, mapped: MappedTensor | None, name: str, dtype: ir.DataType) -> ir.TensorProtocol:
    """A real parameter as a graph's weight of `dtype`; a cast is computed on every access, and not kept."""
    if from_torch_dtype(tensor.dtype) == dtype:
        return TorchTensor(tensor, name)

    def cast() -> ir.TensorProtocol:
        source = in_file(mapped, name) if mapped else TorchTensor(tensor, name)
        return ir.Tensor(source.numpy().astype(dtype.numpy()), name=name)

    return ir.LazyTensor(cast, dtype, ir.Shape(tensor.shape), name=name)


def mapped_weight(mapped: MappedTensor, name: str, dtype: ir.DataType, transposed: bool) -> ir.TensorProtocol:
    """A tensor of a file as a graph's weight of `dtype`; casts and transposes happen when it is written."""
    shape = list(mapped.tensor.shape)
    if from_torch_dtype(mapped.tensor.dtype) == dtype and not transposed:
        return in_file(mapped, name)

    def copy() -> ir.TensorProtocol:
        array = in_file(mapped, name).numpy()
        return ir.Tensor(np.ascontiguousarray(array.T if transposed else array, dtype.numpy()), name=name)

    return ir.LazyTensor(copy, dtype, ir.Shape(shape[::-1] if transposed else shape), name=name)
