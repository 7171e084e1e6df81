"""Cases of `operator_cases` for CUDA kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from covering import few
from operator_bounds import check_outputs
from operator_cases import FLOAT_LIMITS, MAKERS, Case, for_gpu, in_float16, in_words

from intaglio.plugins import OPS
from intaglio.plugins.cuda.compiler import SMS

GPUS = few(SMS, list(SMS)[:1])  # test parameters; compiling all kernels for one takes NVRTC a minute of a processor

Run = Callable[[Case, int], list[np.ndarray]]  # of a case and a seed: its outputs


def kernel_case(operator: str, random: np.random.Generator) -> Case:
    """A random case; floats are often float16, sometimes with tables, scales or values in float32."""
    case = in_words(for_gpu(MAKERS[operator](random)))
    if operator not in FLOAT_LIMITS or random.random() < 0.3:
        return case
    return in_float16(case, mixed=random.random() < 0.3)


def around_the_limits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x [rows, channels], and the multipliers and shifts of the channels, every shift with four multipliers.

    The rows are the ends of int32, and values whose product / 2^shift is around the limits of 8 and 16 bits.
    """
    shifts = np.repeat(np.arange(63, dtype=np.int32), 4)
    multipliers = np.tile(np.array([2**31 - 1, 2**30, 2**29 + 12345, 3], np.int32), 63)
    ends = np.array([0, 1, 2, 2**16, 2**30 - 1, 2**30, 2**31 - 1, 2**31])
    limits = np.array([0.5, 1, 127, 127.5, 128.5, 32767, 32767.5, 32768.5, 70000])
    near = np.minimum(np.rint(limits[:, None] * 2.0**shifts / multipliers), 2**31)
    values = np.concatenate([np.broadcast_to(ends[:, None], (len(ends), len(shifts))), near, near - 1, near + 1])
    x = np.clip(np.concatenate([values, -values]), -(2**31), 2**31 - 1).astype(np.int32)
    return x, multipliers, shifts


def check(run: Run, case: Case, seed: int = 0) -> None:
    """What `run` gives equals the reference, within the operator's bound."""
    if "activation_bits" in case.attributes:  # has no meaning here, so the bound for all bits applies
        case = Case(case.operator, case.inputs, {**case.attributes, "activation_bits": 32})
    expected = OPS[case.operator].reference(case.inputs, case.attributes)
    got = run(case, seed)
    assert len(got) == len(expected)
    check_outputs(case, got, expected)
