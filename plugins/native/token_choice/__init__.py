"""The choice of a token by a random number, among those that the filters of sampling keep, and the likeliest ones.

The kernels are compiled with those of the operators; without a compiler, the NumPy reference is used. All of them
choose the same token.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intaglio.plugins import ort
from intaglio.plugins.native.token_choice import reference
from intaglio.plugins.native.token_choice.filters import Filters
from intaglio.plugins.native.token_choice.reference import DRAW_BITS, ONE, Scores, Weights

__all__ = ["DRAW_BITS", "Filters", "choose", "likeliest", "weights"]


class _Filters(ctypes.Structure):
    """`TokenFilters` of kernel.h."""

    _fields_ = (
        ("top", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("top_k", ctypes.c_int64),
        ("top_p", ctypes.c_uint64),
        ("min_p", ctypes.c_uint64),
    )


class _Kernels(NamedTuple):
    """The compiled functions for this processor."""

    choose: Callable[..., int]
    likeliest: Callable[..., int]
    weigh: Callable[..., bool]


def choose(scores: npt.NDArray[np.floating], filters: Filters, draw: int, top: float | None = None) -> int:
    """Return the token at `draw` / 2^53 of the sum of all weights, in the order of the tokens.

    scores: [vocab], rounded to float32, the highest is finite, none is NaN. draw: 0 to 2^53 - 1. top: the highest of
    the scores, if it is known.
    """
    scores, kernels = np.ascontiguousarray(scores, np.float32), _kernels()
    if kernels is None:
        return reference.choose(scores, filters, draw)
    token = kernels.choose(*_arguments(scores, filters, top), draw)
    if token < 0:
        raise MemoryError
    return token


def weights(scores: npt.NDArray[np.floating], filters: Filters, top: float | None = None) -> Weights:
    """Return the weight of each token, uint64 [vocab]: in proportion to its probability, and 0 if a filter drops it.

    See `choose`.
    """
    scores, kernels = np.ascontiguousarray(scores, np.float32), _kernels()
    if kernels is None:
        return reference.weights(scores, filters)
    found: Weights = np.empty(len(scores), np.uint64)
    if not kernels.weigh(*_arguments(scores, filters, top), found.ctypes.data):
        raise MemoryError
    return found


def likeliest(
    scores: npt.NDArray[np.floating], count: int, top: float | None = None
) -> tuple[npt.NDArray[np.intp], float]:
    """Return the `count` tokens with the highest scores, in descending order, and the sum of exp(score - highest).

    Of equal scores, the first token comes first. See `choose`.
    """
    scores, kernels = np.ascontiguousarray(scores, np.float32), _kernels()
    if kernels is None:
        return reference.likeliest(scores, count)
    tokens, total = np.empty(min(count, len(scores)), np.uint32), ctypes.c_uint64()
    arguments = _arguments(scores, Filters.of(1.0, count), top)
    if kernels.likeliest(*arguments, tokens.ctypes.data, ctypes.byref(total)) < 0:
        raise MemoryError
    order = np.argsort(-scores[tokens], kind="stable")
    return tokens[order].astype(np.intp), total.value / 2.0**ONE


def _arguments(scores: Scores, filters: Filters, top: float | None) -> tuple[Any, ...]:
    """The first arguments of both functions, after the instruction set."""
    highest = float(scores.max()) if top is None else top
    settings = _Filters(highest, float(filters.scale), *filters[1:])
    return scores.ctypes.data, len(scores), ctypes.byref(settings)


@functools.cache
def _kernels() -> _Kernels | None:
    """The kernels, or None without a compiler."""
    path = ort.library()
    if path is None:
        return None
    library, isa = ctypes.CDLL(str(path)), ort.instruction_set_number()
    common = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    library.intaglio_choose_token.argtypes = (*common, ctypes.c_uint64)
    library.intaglio_choose_token.restype = ctypes.c_int64
    library.intaglio_likeliest_tokens.argtypes = (*common, ctypes.c_void_p, ctypes.c_void_p)
    library.intaglio_likeliest_tokens.restype = ctypes.c_int64
    library.intaglio_weigh_tokens.argtypes = (*common, ctypes.c_void_p)
    library.intaglio_weigh_tokens.restype = ctypes.c_bool
    functions = (library.intaglio_choose_token, library.intaglio_likeliest_tokens, library.intaglio_weigh_tokens)
    return _Kernels(*(functools.partial(function, isa) for function in functions))
