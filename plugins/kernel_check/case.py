"""A node of an operator with inputs, and what launching its CUDA kernel needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.plugins import OPS
from intaglio.plugins.cuda.launching.geometry import Launch, Tensor
from intaglio.plugins.cuda.launching.launches import launch

Array = npt.NDArray[Any]
Output = tuple[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True)
class Case:
    """One node: its inputs (None for an omitted one), attributes, and number of outputs."""

    operator: str
    inputs: tuple[Array | None, ...]
    attributes: dict[str, Any]
    outputs: int = 1

    def __str__(self) -> str:
        """The inputs' shapes and dtypes, and the attributes, on one line."""
        named = zip(OPS[self.operator].inputs, self.inputs, strict=False)
        arrays = [f"{spec.name} {array.dtype}{list(array.shape)}" for spec, array in named if array is not None]
        return ", ".join([*arrays, *(f"{name}={value}" for name, value in self.attributes.items())])


Cases = Iterator[Case]  # what `cases` in an operator's gpu_cases.py yields


def folder_of(operator: str) -> str:
    """The folder with the spec and kernels of an operator."""
    return OPS[operator].folder


def launch_of(case: Case, sm: int = 80) -> Launch:
    """The kernel launch of the case for compute capability `sm`."""
    tensors = [None if array is None else Tensor(array.shape, array.dtype.name) for array in case.inputs]
    return launch(folder_of(case.operator), tensors, OPS[case.operator].complete(case.attributes), sm)


def outputs_of(case: Case) -> list[Output]:
    """Shape and dtype of every output of the kernel."""
    operator = OPS[case.operator]
    shapes = operator.padded([None if array is None else array.shape for array in case.inputs])
    outputs = operator.outputs(shapes, operator.complete(case.attributes))
    named = zip(operator.inputs, case.inputs, strict=False)
    dtypes = {spec.name: array.dtype for spec, array in named if array is not None}
    return [(each.shape, dtypes[each.like] if each.like else np.dtype(each.dtype)) for each in outputs]  # type: ignore[misc]
