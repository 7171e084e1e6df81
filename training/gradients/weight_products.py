"""Products with weights: functions whose backward pass computes the gradient of their weight, and passes it on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from intaglio.processes.threads import in_parallel
from intaglio.runtime.engines.engine import Array

ROWS = 128  # of a product that a thread computes at a time
GradientConsumer = Callable[[str, Tensor], None]


@dataclass(frozen=True)
class Weight:
    """A matrix as stored in the graph, in the graph's dtype; `transposed`: used transposed."""

    name: str
    array: Array
    transposed: bool = False

    def matrix(self) -> Tensor:
        """The factor of the product, in float32, not to be written to.

        A copy if it is stored in another dtype, or begins between two numbers, as it may inside a message.
        """
        matrix = only_read(np.require(self.array, requirements="A")).to(torch.float32)
        return matrix.T if self.transposed else matrix

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the array as stored, in float32."""
        return torch.from_numpy(self.array[ids.numpy()]).to(torch.float32)


class Gradients:
    """Sums the gradients of a weight's uses, and passes the sum on after the last one."""

    def __init__(self, consume: GradientConsumer, uses: Mapping[str, int]):
        self._consume = consume
        self._open = dict(uses)
        self._held: dict[str, Tensor] = {}
        self.anchor = torch.zeros((), requires_grad=True)  # makes autograd call backward if no input has a gradient

    def add(self, name: str, gradient: Tensor) -> None:
        """Add the gradient of one use of the weight `name`."""
        held = self._held.pop(name, None)
        gradient = gradient if held is None else held.add_(gradient)
        self._open[name] -= 1
        if self._open[name]:
            self._held[name] = gradient
        else:
            self._consume(name, gradient)


class Product(torch.autograd.Function):
    """x [..., K] times a weight [K, N]."""

    @staticmethod
    def forward(context: Any, x: Tensor, anchor: Tensor, weight: Weight, gradients: Gradients) -> Tensor:
        """[..., N]."""
        context.save_for_backward(x)
        context.weight, context.gradients = weight, gradients
        return multiplied(x, weight.matrix())

    @staticmethod
    def backward(context: Any, *outputs: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradient of x; that of the weight goes to `gradients`."""
        weight: Weight = context.weight
        (x,) = context.saved_tensors
        rows, slopes = x.reshape(-1, x.shape[-1]), outputs[0].reshape(-1, outputs[0].shape[-1])
        left, right = (slopes, rows) if weight.transposed else (rows, slopes)
        context.gradients.add(weight.name, multiplied(left.T, right))
        return multiplied(outputs[0], weight.matrix().T), None, None, None


class Rows(torch.autograd.Function):
    """Rows of a table [rows, width] by index; the table is a weight too."""

    @staticmethod
    def forward(context: Any, ids: Tensor, anchor: Tensor, weight: Weight, gradients: Gradients) -> Tensor:
        """[..., width]."""
        context.save_for_backward(ids)
        context.weight, context.gradients = weight, gradients
        return weight.rows(ids)

    @staticmethod
    def backward(context: Any, *outputs: Tensor) -> tuple[None, None, None, None]:
        """Nothing for the ids; the gradient of the table goes to `gradients`."""
        (ids,) = context.saved_tensors
        gradient = torch.zeros(context.weight.array.shape)
        gradient.index_add_(0, ids.reshape(-1), outputs[0].reshape(-1, gradient.shape[1]))
        context.gradients.add(context.weight.name, gradient)
        return None, None, None, None


def only_read(array: Array) -> Tensor:
    """The array itself as a tensor that nothing writes to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the array can't be written to
        return torch.from_numpy(array)


def multiplied(x: Tensor, matrix: Tensor) -> Tensor:
    """x [..., K] times a matrix [K, N]: `ROWS` rows of x at a time, in parallel.

    So the bits do not depend on the number of threads. torch divides a product among its own, and rounds it otherwise
    with more of them.
    """
    rows, matrix = x.detach().reshape(prod(x.shape[:-1]), x.shape[-1]), matrix.detach()  # gradients: see `Product`
    result = torch.empty(len(rows), matrix.shape[1])

    def multiply(start: int) -> None:
        torch.set_num_threads(1)  # of this thread: a new one begins with all
        part = slice(start, start + ROWS)
        torch.mm(rows[part], matrix, out=result[part])

    in_parallel(multiply, range(0, len(rows), ROWS))
    return result.reshape(*x.shape[:-1], matrix.shape[1])
