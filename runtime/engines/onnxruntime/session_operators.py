"""Operators of ours that a graph gets when ONNX Runtime opens it on a CPU, in place of standard ones that are slower.

The graph of a bundle keeps the standard operators, for other runtimes.
"""

from __future__ import annotations

from intaglio.errors import UsageError
from intaglio.plugins import ort as kernels
from intaglio.plugins.registry import OF_SESSIONS
from intaglio.runtime.engines.caches.cached_attention import QUANTIZE
from intaglio.runtime.engines.onnxruntime.custom_operators import COMPILE
from intaglio.targets import Target


def can_put_in(target: Target) -> bool:
    """Whether `target` runs on the CPU, and the compiled library has the kernels."""
    return not target.needs_gpu and {*OF_SESSIONS} <= {*kernels.operators()}


def check_kernels(cache_bits: int) -> None:
    """Raise `UsageError` if the compiled library has no kernels for caches of `cache_bits`."""
    if QUANTIZE not in kernels.operators():
        raise UsageError(
            f"--cache-bits {cache_bits}: needs compiled kernels, and intaglio was installed without a C++ compiler. "
            f"{COMPILE}"
        )
