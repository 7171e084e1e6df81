"""A mask of bits applied to logits, which decides which tokens may come next.

The kernels are compiled with those of the operators; without a compiler, the NumPy reference is used.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from intaglio.plugins import ort
from intaglio.plugins.logit_mask import reference
from intaglio.plugins.logit_mask.reference import BITS

__all__ = ["BITS", "apply"]

Logits = npt.NDArray[np.floating]
Octets = npt.NDArray[np.uint8]


def apply(logits: Logits, octets: Octets, memory: Logits) -> Logits:
    """Return the logits [vocab] plus 0 where a bit is set, and minus infinity elsewhere.

    octets: the bits of the first tokens, the first one in the lowest bit; those beyond are 0. memory: [vocab or more]
    of the dtype of `logits`, which the result is written to. An infinite logit whose bit is not set becomes NaN.
    """
    held = min(BITS * len(octets), len(logits))
    masked = memory[: len(logits)]
    masked[held:] = -np.inf
    _apply(logits[:held], np.ascontiguousarray(octets[: -(-held // BITS)]), masked[:held])
    return masked


def _apply(logits: Logits, octets: Octets, masked: Logits) -> None:
    kernel = _kernel()
    if kernel is None or not all(each.dtype == np.float32 and each.flags.c_contiguous for each in (logits, masked)):
        reference.apply(logits, octets, masked)
    else:
        kernel(_address(logits), _address(octets), ctypes.c_int64(len(logits)), _address(masked))


@functools.cache
def _kernel() -> Callable[..., None] | None:
    """Return the compiled kernel for this processor, or None."""
    path = ort.library()
    if path is None:
        return None
    function = ctypes.CDLL(str(path)).intaglio_mask_logits
    function.restype = None
    return functools.partial(function, ctypes.c_int(ort.instruction_set_number()))


def _address(array: npt.NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
