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
from intaglio.plugins.native.logit_mask import reference
from intaglio.plugins.native.logit_mask.reference import BITS

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
    if held < len(logits):
        masked[held:] = -np.inf
    octets = octets[: -(-held // BITS)]
    kernel = _kernel()
    if kernel is None or not (_is_plain(logits) and _is_plain(masked) and octets.flags.c_contiguous):
        reference.apply(logits[:held], octets, masked[:held])
    else:
        kernel(_address(logits), _address(octets), held, _address(masked))
    return masked


def _is_plain(array: Logits) -> bool:
    """Whether the kernel, which gets only an address, can read and write the array directly."""
    return array.dtype == np.float32 and array.flags.c_contiguous


@functools.cache
def _kernel() -> Callable[..., None] | None:
    """Return the compiled kernel for this processor, or None."""
    path = ort.library()
    if path is None:
        return None
    function = ctypes.CDLL(str(path)).intaglio_mask_logits
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    function.restype = None
    return functools.partial(function, ort.instruction_set_number())


def _address(array: npt.NDArray[np.generic]) -> int:
    address: int = array.__array_interface__["data"][0]  # `ctypes.data` takes three times as long
    return address
