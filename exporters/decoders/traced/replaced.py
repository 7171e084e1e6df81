"""Replace parts of a decoder by operators of ONNX before it is traced: norms, activations, the rotation by positions.

Every family writes them in its own way, and most of these would be traced to some ten nodes. What a part computes is
found by trying: it is compared with the operators on random numbers, and replaced where the results agree.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.exporters.decoders.traced.operators import rms_norm, rotary

EPSILONS = ("variance_epsilon", "eps", "epsilon", "norm_eps")  # the names of a norm's epsilon
ROTATION = "apply_rotary_pos_emb"  # the name of the function that rotates queries and keys, in most families
TOLERANCE = 1e-5  # of numbers around 1: those of two orders of summation in float32


def replace_modules(model: nn.Module) -> None:
    """Replace the norms and activations of `model`, whose weights need not have values."""
    for module in model.modules():
        if "Norm" in type(module).__name__ and not isinstance(module, nn.LayerNorm):
            norm = _norm_of(module)
            if norm is not None:
                module.forward = partial(norm, module)  # type: ignore[method-assign]
        elif not any(module.children()) and not any(True for _ in module.parameters()) and (found := _gelu_of(module)):
            module.forward = partial(nn.functional.gelu, approximate=found)  # type: ignore[method-assign]


@dataclass(frozen=True)
class _Norm:
    """x, divided by its root mean square and, if `centred`, less its mean before; times `shift` + weight; plus bias."""

    centred: bool
    shift: float
    epsilon: float

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        width = x.shape[-1]
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if weight is not None:
            weight = (weight + self.shift if self.shift else weight).to(x.dtype)
        inside = weight if weight is not None and weight.ndim == 1 else None  # others have a row for each head
        if self.centred:
            normed = nn.functional.layer_norm(x, (width,), inside, None, self.epsilon)
        else:
            normed = rms_norm(x, torch.ones(width, dtype=x.dtype) if inside is None else inside, self.epsilon)
        if weight is not None and inside is None:
            normed = normed * weight
        return normed if bias is None else normed + bias


def _norm_of(module: nn.Module) -> _Norm | None:
    """The norm that a module computes, if it is one of these."""
    epsilon = next((value for name in EPSILONS if isinstance(value := getattr(module, name, None), float)), None)
    if epsilon is None or any(module.children()) or len(inspect.signature(module.forward).parameters) != 1:
        return None
    random = torch.Generator().manual_seed(0)
    probe = copy.copy(module)
    probe._parameters = {
        name: None if old is None else nn.Parameter(torch.rand(old.shape, generator=random) + 0.5, requires_grad=False)
        for name, old in module._parameters.items()
    }
    weight = probe._parameters.get("weight")
    x = 3 * torch.randn(2, 3, *(weight.shape if weight is not None else [8]), generator=random)
    candidates = [_Norm(centred, shift, epsilon) for centred, shift in product((False, True), (0.0, 1.0))]
    try:
        found = probe(x)
        return next((each for each in candidates if _agree(each(probe, x), found)), None)
    except Exception:  # a module that is no norm of one array
        return None


def _gelu_of(module: nn.Module) -> str:
    """The form of GELU that a module without weights computes: "none" (exact), "tanh", or "" for another function."""
    x = torch.linspace(-6, 6, 997)
    try:
        found = module(x)
    except Exception:  # a module of other inputs
        return ""
    return next((each for each in ("none", "tanh") if _agree(nn.functional.gelu(x, approximate=each), found)), "")


class Rotations:
    """The functions by which a model rotates queries and keys, [batch, heads, tokens, head_dim] or transposed."""

    def __init__(self, model: nn.Module):
        modules = {type(module).__module__ for module in model.modules()}
        self._owners = [
            owner for name in sorted(modules) if _rotates(getattr(owner := sys.modules[name], ROTATION, None))
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
        with self._in_place(self._rotate):
            yield

    @contextmanager
    def _in_place(self, replacement: Callable[..., Any]) -> Iterator[None]:
        functions = [getattr(owner, ROTATION) for owner in self._owners]
        for owner, function in zip(self._owners, functions, strict=True):
            setattr(owner, ROTATION, partial(replacement, function))
        try:
            yield
        finally:
            for owner, function in zip(self._owners, functions, strict=True):
                setattr(owner, ROTATION, function)

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


def _rotates(function: Any) -> bool:
    return callable(function) and list(inspect.signature(function).parameters)[:4] == ["q", "k", "cos", "sin"]


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
        if all(map(_agree, wanted, found)):
            return layout, interleaved
    return None


def _agree(first: Tensor, second: Any) -> bool:
    return (
        isinstance(second, Tensor)
        and first.shape == second.shape
        and torch.allclose(first, second, atol=TOLERANCE, rtol=TOLERANCE)
    )
