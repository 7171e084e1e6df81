"""What launching a CUDA kernel needs: a node of an operator with inputs, or a launch beside engines."""

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
        arrays = [_described(spec.name, array) for spec, array in named if array is not None]
        return ", ".join([*arrays, *(f"{name}={value}" for name, value in self.attributes.items())])

    @property
    def folder(self) -> str:
        """The folder below `plugins` with the kernels."""
        return OPS[self.operator].folder

    def launch(self, sm: int = 80) -> Launch:
        """The kernel launch for compute capability `sm`."""
        tensors = [None if array is None else Tensor(array.shape, array.dtype.name) for array in self.inputs]
        return launch(self.folder, tensors, OPS[self.operator].complete(self.attributes), sm)

    def made(self) -> list[Output]:
        """Shape and dtype of every output of the kernel."""
        operator = OPS[self.operator]
        shapes = operator.padded([None if array is None else array.shape for array in self.inputs])
        outputs = operator.outputs(shapes, operator.complete(self.attributes))
        named = zip(operator.inputs, self.inputs, strict=False)
        dtypes = {spec.name: array.dtype for spec, array in named if array is not None}
        return [(each.shape, dtypes[each.like] if each.like else np.dtype(each.dtype)) for each in outputs]  # type: ignore[misc]

    def expected(self) -> list[Array]:
        """The outputs by the NumPy reference."""
        return OPS[self.operator].reference(self.inputs, self.attributes)


@dataclass(frozen=True, kw_only=True)
class KernelCase(Case):
    """One launch of a kernel that belongs to no operator, which is named after it, and its outputs by a reference."""

    place: str  # the folder below `plugins`
    launched: Launch
    results: tuple[Array, ...]

    def __str__(self) -> str:
        """The inputs' shapes and dtypes, and the kernel's scalars, on one line."""
        arrays = [_described(str(place), array) for place, array in enumerate(self.inputs) if array is not None]
        return ", ".join([*arrays, f"scalars {list(self.launched.scalars)}"])

    @property
    def folder(self) -> str:
        """See `Case`."""
        return self.place

    def launch(self, sm: int = 80) -> Launch:
        """See `Case`; the same for every GPU."""
        return self.launched

    def made(self) -> list[Output]:
        """See `Case`."""
        return [(each.shape, each.dtype) for each in self.results]

    def expected(self) -> list[Array]:
        """See `Case`."""
        return list(self.results)


Cases = Iterator[Case]  # what `cases` in a folder's gpu_cases.py yields


def _described(name: str, array: Array) -> str:
    return f"{name} {array.dtype}{list(array.shape)}"
