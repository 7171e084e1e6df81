"""The launch of IntLayerNorm's CUDA kernels: one warp for each row. They write both outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from intaglio.errors import EngineError
from intaglio.plugins.cuda.launching.geometry import Attributes, Launch, Length, Tensors, blocks, constants, product
from intaglio.plugins.integer_math import layer_norm_constants

ROWS, THREADS = 4, 128  # of a block, as in kernel.cu
LEAST_SHIFT = 2  # LEAST of cuda/rounding.cuh
EXPONENT_BIAS = 1024  # as in kernel.cu: with it no exponent of a float32 epsilon is negative


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """Rows are all axes of x but the last; the channels are a number, as the constants depend on it.

    The kernel is chosen by the inputs given: a residual, and factors from wide to y. Raises `EngineError` for scales of
    weight or bias that are 2^14 times the output's or more, which no model has.
    """
    missing = [None] * (6 - len(inputs))
    x, weight, _, multiplier, shift, residual = [*inputs, *missing][:6]
    assert x is not None and weight is not None
    entry, rows = "int_layer_norm", product(x.shape[:-1])
    scalars: list[Length] = [rows]
    if residual is not None:
        entry += "_residual"
        scalars.append(np.dtype(residual.dtype).itemsize)
    integers = layer_norm_constants(weight.shape[0], **attributes)
    if min(integers.weight_shift, integers.bias_shift) < LEAST_SHIFT:
        raise EngineError("int_layer_norm: a weight or bias far beyond the output's scale. Calibrate with other data.")
    exponent = integers.epsilon_exponent + EXPONENT_BIAS
    scalars += constants(replace(integers, root=integers.root - 1, epsilon_exponent=exponent))
    if multiplier is not None and shift is not None:
        entry += "_channels"
        scalars[-2:] = [multiplier.shape[0], shift.shape[0]]
    return Launch(entry, (blocks(rows, ROWS), 1, 1), (THREADS, 1, 1), tuple(scalars))
