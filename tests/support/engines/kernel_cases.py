"""Cases of `operator_cases` for CUDA kernels."""

from __future__ import annotations

import numpy as np
from covering import few
from operator_cases import FLOAT_LIMITS, MAKERS, Case, in_float16

from intaglio.plugins.cuda.compiler import SMS

GPUS = few(SMS, list(SMS)[:1])  # test parameters; compiling all kernels for one takes NVRTC a minute of a processor


def kernel_case(operator: str, random: np.random.Generator) -> Case:
    """A random case; floats are often float16, sometimes with tables, scales or values in float32."""
    case = MAKERS[operator](random)
    if operator not in FLOAT_LIMITS or random.random() < 0.3:
        return case
    return in_float16(case, mixed=random.random() < 0.3)
