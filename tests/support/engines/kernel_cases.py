"""Cases of `operator_cases` for CUDA kernels."""

from __future__ import annotations

import numpy as np
import pytest
from operator_cases import FLOAT_LIMITS, MAKERS, Case, in_float16

from intaglio.plugins.cuda.compiler import SMS

# Test parameters. NVRTC takes half a minute per GPU, and H100 kernels have the same instructions as A100 kernels.
GPUS = [pytest.param(sm, marks=pytest.mark.proof) if sm == 90 else sm for sm in SMS]


def kernel_case(operator: str, random: np.random.Generator) -> Case:
    """A random case; floats are often float16, sometimes with tables, scales or values in float32."""
    case = MAKERS[operator](random)
    if operator not in FLOAT_LIMITS or random.random() < 0.3:
        return case
    return in_float16(case, mixed=random.random() < 0.3)
