"""Cases of `operator_cases` for CUDA kernels, and their launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from operator_cases import FLOAT_LIMITS, MAKERS, Case, in_float16

from intaglio.plugins import OPS
from intaglio.plugins.cuda.compiler import SMS
from intaglio.plugins.cuda.geometry import Launch, Tensor
from intaglio.plugins.cuda.launches import launch

# Test parameters. NVRTC takes half a minute per GPU, and H100 kernels have the same instructions as A100 kernels.
GPUS = [pytest.param(sm, marks=pytest.mark.proof) if sm == 90 else sm for sm in SMS]
Output = tuple[tuple[int, ...], np.dtype[Any]]


def folder_of(operator: str) -> str:
    """The folder with the spec and kernels of an operator."""
    return OPS[operator].folder


def kernel_case(operator: str, random: np.random.Generator) -> Case:
    """A random case; floats are often float16, sometimes with tables, scales or values in float32."""
    case = MAKERS[operator](random)
    if operator not in FLOAT_LIMITS or random.random() < 0.3:
        return case
    return in_float16(case, mixed=random.random() < 0.3)


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
    return [(each.shape, dtypes[each.like] if each.like else np.dtype(each.dtype)) for each in outputs]
