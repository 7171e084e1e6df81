"""A case of `operator_cases` as a launch of its CUDA kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from operator_cases import Case

from intaglio.plugins import OPS
from intaglio.plugins.cuda.geometry import Launch, Tensor, launch

Output = tuple[tuple[int, ...], np.dtype[Any]]


def folder_of(operator: str) -> str:
    """The folder that holds an operator's spec and kernels."""
    return OPS[operator].folder


def launch_of(case: Case) -> Launch:
    """How the case's kernel is launched."""
    tensors = [None if array is None else Tensor(array.shape, array.dtype.name) for array in case.inputs]
    return launch(folder_of(case.operator), tensors, OPS[case.operator].complete(case.attributes))


def outputs_of(case: Case) -> list[Output]:
    """Shape and dtype of everything that the kernel writes."""
    operator = OPS[case.operator]
    shapes = operator.padded([None if array is None else array.shape for array in case.inputs])
    outputs = operator.outputs(shapes, operator.complete(case.attributes))
    return [(output.shape, np.dtype(output.dtype)) for output in outputs]
