"""Replace the functions that rotate queries and keys by their positions with the operator of ONNX, where they agree.

A rotation turns pairs of components by angles; families differ in which components form a pair, in the layout of the
cosines, and in the order of the axes. Which of these a function is, is found by calling it with random numbers.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from intaglio.exporters.decoders.operators import rotary
from intaglio.exporters.decoders.traced.replaced import agree

ROTATION = "apply_rotary_pos_emb"  # the name of most families' function, of these arguments:
ARGUMENTS = ["q", "k", "cos", "sin"]
COMPLEX_ROTATION = "apply_rotary_emb"  # the same for angles as complex numbers:
COMPLEX_ARGUMENTS = ["xq", "xk", "freqs_cis"]


class Rotations:
    """The functions by which a model rotates queries and keys, [batch, heads, tokens, head_dim] or transposed."""

    def __init__(self, model: nn.Module):
        modules = [sys.modules[name] for name in sorted({type(module).__module__ for module in model.modules()})]
        self._owners = [each for each in modules if _takes(each, ROTATION, ARGUMENTS)]
        self._complex = [
            (each, axis)
            for each in modules
            if _takes(each, COMPLEX_ROTATION, COMPLEX_ARGUMENTS)
            and (axis := _complex_axis(getattr(each, COMPLEX_ROTATION))) is not None
        ]
        self._calls: set[tuple[Any, ...]] = set()  # function, head_dim, length of the cosines, unsqueeze_dim
        self._found: dict[tuple[Any, ...], tuple[str, bool]] = {}  # the same -> layout of the cosines, interleaved

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside this block calls are remembered; at its end their functions are compared with the operator."""
        with self._in_place(self._watch):
            yield
        for call in self._calls:
            if found := _rotation_of(*call):
                self._found[call] = found

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Inside this block the operator takes the place of the functions that agree with it."""
        with ExitStack() as stack:
            stack.enter_context(self._in_place(self._rotate))
            for owner, axis in self._complex:
                stack.enter_context(mock.patch.object(owner, COMPLEX_ROTATION, partial(_rotate_complex, axis)))
                stack.enter_context(mock.patch.object(torch, "polar", _parts))
            yield

    @contextmanager
    def _in_place(self, replacement: Callable[..., Any]) -> Iterator[None]:
        with ExitStack() as stack:
            for owner in self._owners:
                function = getattr(owner, ROTATION)
                stack.enter_context(mock.patch.object(owner, ROTATION, partial(replacement, function)))
            yield

    def _watch(self, function: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **named: Any) -> Any:
        if (call := _call(function, q, cos, rest, named)) is not None:
            self._calls.add(call)
        return function(q, k, cos, sin, *rest, **named)

    def _rotate(self, function: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **named: Any) -> Any:
        call = _call(function, q, cos, rest, named)
        if call is None or call not in self._found:
            return function(q, k, cos, sin, *rest, **named)
        layout, interleaved = self._found[call]
        cos, sin = _pairs(cos, layout), _pairs(sin, layout)
        if call[-1] == 1:
            return rotary(q, cos, sin, interleaved), rotary(k, cos, sin, interleaved)
        return tuple(rotary(x.transpose(1, 2), cos, sin, interleaved).transpose(1, 2) for x in (q, k))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {  # of the cosines, from one for each pair
    "twice": lambda angles: torch.cat((angles, angles), -1),
    "doubled": lambda angles: angles.repeat_interleave(2, -1),
    "once": lambda angles: angles,
}


def _pairs(cosines: Tensor, layout: str) -> Tensor:
    """One cosine for each pair."""
    half = cosines.shape[-1] // 2
    return {"twice": cosines[..., :half], "doubled": cosines[..., ::2], "once": cosines}[layout]


def _takes(owner: ModuleType, name: str, arguments: list[str]) -> bool:
    """Whether a module has a function of this name and these first arguments."""
    function = getattr(owner, name, None)
    return callable(function) and list(inspect.signature(function).parameters)[: len(arguments)] == arguments


def _call(
    function: Any, q: Tensor, cos: Tensor, rest: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, int, int, int] | None:
    """What decides how a call rotates; None for one of another form."""
    axis = named.get("unsqueeze_dim", rest[0] if rest else 1)
    if q.ndim != 4 or cos.ndim != 3 or axis not in (1, 2) or len(rest) > 1 or named.keys() - {"unsqueeze_dim"}:
        return None
    return function, int(q.shape[-1]), int(cos.shape[-1]), axis


def _rotation_of(function: Any, head_dim: int, length: int, axis: int) -> tuple[str, bool] | None:
    """The layout of the cosines and whether pairs are interleaved, of a function that is a rotation of pairs."""
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, 3, head_dim, generator=random) for heads in (4, 2))
    for (layout, make), interleaved in product(LAYOUTS.items(), (False, True)):
        width = 2 * length if layout == "once" else length
        if width > head_dim or width % 2:
            continue
        angles = 6 * torch.rand(2, 3, width // 2, generator=random)
        cos, sin = make(angles).cos(), make(angles).sin()
        turned = (q, k) if axis == 1 else (q.transpose(1, 2), k.transpose(1, 2))
        wanted = [rotary(x, angles.cos(), angles.sin(), interleaved) for x in (q, k)]
        try:
            found = function(*turned, cos, sin, unsqueeze_dim=axis)
            found = found if axis == 1 else [x.transpose(1, 2) for x in found]
        except Exception:  # a function of another layout
            found = [None, None]
        if all(map(agree, wanted, found)):
            return layout, interleaved
    return None


def _parts(magnitude: Tensor, angles: Tensor) -> Tensor:
    """What stands for complex numbers in a graph: real and imaginary parts, [..., 2]."""
    return torch.stack((magnitude * angles.cos(), magnitude * angles.sin()), -1)


def _rotate_complex(axis: int, xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate neighbours; `axis` is that of the heads, `freqs_cis` [batch, tokens, pairs, 2] is from `_parts`."""
    cos, sin = (part.to(xq.dtype) for part in freqs_cis.unbind(-1))
    if axis == 1:
        return rotary(xq, cos, sin, True), rotary(xk, cos, sin, True)
    first, second = (rotary(x.transpose(1, 2), cos, sin, True).transpose(1, 2) for x in (xq, xk))
    return first, second


def _complex_axis(function: Any) -> int | None:
    """The axis of the heads in a function that rotates neighbours by complex numbers; None if it does not."""
    random = torch.Generator().manual_seed(0)
    angles = 6 * torch.rand(2, 3, 4, generator=random)
    ones = torch.ones_like(angles)
    for axis in (1, 2):
        q, k = (torch.randn(2, heads, 3, 8, generator=random) for heads in (4, 2))
        q, k = (q, k) if axis == 1 else (q.transpose(1, 2), k.transpose(1, 2))
        try:
            found = function(q, k, torch.polar(ones, angles))
        except Exception:  # a function of another layout
            found = (None, None)
        if all(map(agree, _rotate_complex(axis, q, k, _parts(ones, angles)), found)):
            return axis
    return None
