"""Replace parts of a decoder by operators of ONNX before it is traced: norms, activations, the products of GPT-2.

Every family writes them in its own way, and most of these would be traced to some ten nodes. What a part computes is
found by trying: it is compared with the operators on random numbers, and replaced where the results agree.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from intaglio.exporters.decoders.operators import rms_norm

EPSILONS = ("variance_epsilon", "eps", "epsilon", "norm_eps")  # the names of a norm's epsilon
TOLERANCE = 1e-5  # of numbers around 1: those of two orders of summation in float32


def replace_modules(model: nn.Module) -> None:
    """Replace the norms, activations and `Conv1D`s of `model`, whose weights need not have values."""
    for module in model.modules():
        if isinstance(module, Conv1D):
            module.forward = partial(_product, module)
        elif "Norm" in type(module).__name__ and not isinstance(module, nn.LayerNorm):
            norm = _norm_of(module)
            if norm is not None:
                module.forward = partial(norm, module)
        elif not any(module.children()) and not any(True for _ in module.parameters()) and (found := _gelu_of(module)):
            module.forward = partial(nn.functional.gelu, approximate=found)


def _product(module: Conv1D, x: Tensor) -> Tensor:
    """What a `Conv1D` computes, without its reshapes to rows [batch · tokens, width] and back."""
    result: Tensor = x @ module.weight + module.bias
    return result


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
        return next((each for each in candidates if agree(each(probe, x), found)), None)
    except Exception:  # a module that is no norm of one array
        return None


def _gelu_of(module: nn.Module) -> str:
    """The form of GELU that a module without weights computes: "none" (exact), "tanh", or "" for another function."""
    x = torch.linspace(-6, 6, 997)
    try:
        found = module(x)
    except Exception:  # a module of other inputs
        return ""
    return next((each for each in ("none", "tanh") if agree(nn.functional.gelu(x, approximate=each), found)), "")


def agree(first: Tensor, second: Any) -> bool:
    """Whether two results are the same up to rounding."""
    return (
        isinstance(second, Tensor)
        and first.shape == second.shape
        and torch.allclose(first, second, atol=TOLERANCE, rtol=TOLERANCE)
    )
