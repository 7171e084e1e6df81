"""Muon: momentum whose matrices are made orthogonal (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

# Of the quintic iteration a·X + b·(XXᵀ)X + c·(XXᵀ)²X: steep at 0, so that few steps bring all singular values near 1.
QUINTIC = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
SMALLEST = 1e-7  # a norm: of a gradient of zeros


class Muon(torch.optim.Optimizer):
    """Nesterov momentum of which every singular value becomes about 1, with decoupled weight decay, for matrices.

    A matrix with more rows than columns takes steps that are √(rows / columns) times as large. torch's own Muon, with
    the same steps, iterates in bfloat16: processors without instructions for it take ten times as long as in float32,
    six tenths of a training step of a tiny recogniser. Here it is float32, matrices of the same shape together.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0
    ):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change all matrices that have a gradient; return what `closure`, which computes them, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for alike in _by_shape(each for each in group["params"] if each.grad is not None):
                updates = torch.stack([self._update(each, group["momentum"]) for each in alike])
                rows, columns = updates.shape[1:]
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                torch._foreach_mul_(alike, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(alike, list(orthogonalised(updates)), alpha=-rate)
        return loss

    def _update(self, parameter: Tensor, momentum: float) -> Tensor:
        """The gradient, mixed with the mean of those before it."""
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if not state:
            state["mean"] = torch.zeros_like(gradient)
        state["mean"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(state["mean"], momentum)


def orthogonalised(matrices: Tensor) -> Tensor:
    """Matrices [number, rows, columns], each with singular values near 1 instead of its own; zeros stay zeros."""
    a, b, c = QUINTIC
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=SMALLEST)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _by_shape(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    groups: dict[torch.Size, list[Tensor]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.shape, []).append(parameter)
    yield from groups.values()
