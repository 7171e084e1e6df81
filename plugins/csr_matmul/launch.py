"""The launch of CsrMatMul's CUDA kernels: one block for each window of rows and non-zeros and each 8 rows of x.

A block owns the rows of S whose place, the rows and non-zeros before it, lies in its window. So the number of blocks
follows from the lengths of the inputs alone, no row is divided between blocks, and neither a second kernel nor atomic
additions have to join sums. Equal pieces of non-zeros for all threads of the grid would be more even where one row is
longer than a window, but they would need that second step. A window of 512 is four rows or non-zeros to a thread: of a
4096×4096 matrix with 0.45 % non-zeros that makes 156 blocks, which is more than a GPU has multiprocessors.
"""

from __future__ import annotations

import numpy as np

from intaglio.errors import EngineError
from intaglio.plugins.cuda.launching.geometry import Attributes, Launch, Tensors, blocks, product, total

WINDOW, ROWS, THREADS = 512, 8, 128  # as in kernel.cu


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """Rows are all axes of x but the last; the kernel is chosen by the dtype of x, which y has to have too."""
    x, values, _, _, y = inputs
    assert x is not None and values is not None and y is not None
    if x.dtype != y.dtype:
        raise EngineError(f"CsrMatMul: x is {x.dtype} and y {y.dtype}, expected the same. Cast one of them.")
    rows, channels = product(x.shape[:-1]), y.shape[-1]
    count = product([blocks(total([channels, values.shape[0]]), WINDOW), blocks(rows, ROWS)])
    scalars = (rows, x.shape[-1], channels, np.dtype(values.dtype).itemsize)
    return Launch(f"csr_matmul_{x.dtype}", (count, 1, 1), (THREADS, 1, 1), scalars)
