"""The caches that a decoder of `transformers` gets in place of its own: positions and masks are inputs of a step.

A short convolution over the last tokens needs its inputs for them. Its layer keeps these for all tokens, in the slots
of keys and values, half of the components in each: so a rollback lowers a length there, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from intaglio.exporters.decoders.operators import rows_at, tensor_scatter

Shapes = dict[int, tuple[int, int, int]]  # of the layers with a cache: heads, dim of a key, dim of a value


class _NoOtherState(list[Any]):
    """The layers of a cache of transformers, in which a model may keep more than keys and values."""

    def __getitem__(self, layer: Any) -> Any:
        raise NotImplementedError("it keeps a state in its cache that is no keys or values")


class _WithoutLength(Cache):  # type: ignore[misc]
    """A cache on whose length nothing depends, as positions and masks are given."""

    def __init__(self) -> None:
        super().__init__(layers=_NoOtherState())

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Return 0."""
        return 0

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """Return None: a convolution takes the state of `update_conv_state`."""


class StepCache(_WithoutLength):
    """Buffers [batch, heads, capacity, dim], which a step writes from the slots `start` [batch] on.

    Buffers of another dtype than the model's, as those of a float16 bundle, are converted.
    """

    def __init__(self, past: Mapping[int, tuple[Tensor, Tensor]], start: Tensor):
        """`past`: the keys and values of each layer that has a cache."""
        super().__init__()
        self.present = dict(past)  # the same with the step's tokens, once a layer has written them
        self._start = start

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return the number of slots, and the first."""
        keys, _ = next(iter(self.present.values()))
        return keys.shape[2], 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values of a layer; return its whole buffers."""
        keys, values = (past.to(key_states.dtype) for past in self.present[layer_idx])
        written = tensor_scatter(keys, key_states, self._start), tensor_scatter(values, value_states, self._start)
        self.present[layer_idx] = written
        return written

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int = 1, **kwargs: Any
    ) -> Tensor:
        """Write the inputs [batch, width, tokens] of a convolution; return them behind those of the tokens before."""
        count = conv_kernel_size - 1
        halves = self.update(*_halves(conv_states), layer_idx)
        slots = self._start[:, None] + torch.arange(-count, 0)
        before = [rows_at(half[:, 0], slots.clamp(min=0)) for half in halves]
        past = torch.cat(before, -1) * (slots >= 0)[..., None].to(conv_states.dtype)
        return torch.cat([past.transpose(1, 2), conv_states], 2)

    def tensors(self) -> list[Tensor]:
        """Keys and values of the layers in turn, in the order of the graph's outputs."""
        return [tensor for pair in self.present.values() for tensor in pair]

    def holds(self, *tensors: Tensor) -> bool:
        """Whether all of these are buffers themselves, and nothing computed from them."""
        return all(any(tensor is each for each in self.tensors()) for tensor in tensors)


class ShapeCache(_WithoutLength):
    """A cache that holds nothing, and notes which layers write keys and values of which shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Shapes = {}

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return the number of tokens: there are no others."""
        return query_length, 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Note the shapes."""
        self.shapes[layer_idx] = (int(key_states.shape[1]), int(key_states.shape[3]), int(value_states.shape[3]))
        return key_states, value_states

    def holds(self, *tensors: Tensor) -> bool:
        """Return False: there are no buffers."""
        return False

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int = 1, **kwargs: Any
    ) -> Tensor:
        """Note the shapes."""
        self.update(*_halves(conv_states), layer_idx)
        return conv_states


def _halves(states: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs [batch, width, tokens] of a convolution as keys and values [batch, 1, tokens, width / 2]."""
    first, second = states.transpose(1, 2)[:, None].chunk(2, -1)
    return first, second
