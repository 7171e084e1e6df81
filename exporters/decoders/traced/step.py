"""What `transformers` asks for while a decoder computes a step: a cache, masks, attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.masking_utils import causal_mask_function

from intaglio.exporters.decoders.traced import experts
from intaglio.exporters.decoders.traced.operators import attention, attention_with_sinks, tensor_scatter

NAME = "intaglio"  # of this attention among those of transformers
# What models tell the attention beside its inputs, and what does not change its result here: windows are in the mask.
WITHOUT_EFFECT = {"dropout", "sliding_window", "is_causal", "position_ids", "use_cache", "layer_idx", "return_dict"}


class _NoOtherState(list[Any]):
    """The layers of a cache of transformers, in which a model may keep more than keys and values."""

    def __getitem__(self, layer: Any) -> Any:
        raise NotImplementedError("it keeps a state in its cache that is no keys or values")


class StepCache(Cache):  # type: ignore[misc]
    """Buffers [batch, heads, capacity, dim], which a step writes from the slots `start` [batch] on."""

    def __init__(self, past: Mapping[int, tuple[Tensor, Tensor]], start: Tensor):
        """`past`: the keys and values of each layer that has a cache."""
        super().__init__(layers=_NoOtherState())
        self._past, self._start = past, start
        self.present: dict[int, tuple[Tensor, Tensor]] = {}  # the same with the step's tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: positions and masks are inputs of the step, so nothing depends on it."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Return 0, likewise."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return the number of slots, and the first."""
        keys, _ = next(iter(self._past.values()))
        return keys.shape[2], 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values of a layer; return its whole buffers."""
        keys, values = self._past[layer_idx]
        written = (
            tensor_scatter(keys, key_states, self._start),
            tensor_scatter(values, value_states, self._start),
        )
        self.present[layer_idx] = written
        return written


class ShapeCache(Cache):  # type: ignore[misc]
    """A cache that holds nothing, and notes which layers write keys and values of which shapes."""

    def __init__(self) -> None:
        super().__init__(layers=_NoOtherState())
        self.shapes: dict[int, tuple[int, int, int]] = {}  # by layer: heads, dim of a key, dim of a value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Return 0."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return the number of tokens: there are no others."""
        return query_length, 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Note the shapes."""
        self.shapes[layer_idx] = (int(key_states.shape[1]), int(key_states.shape[3]), int(value_states.shape[3]))
        return key_states, value_states


class Step:
    """The inputs of a step that masks depend on.

    mask       bool [batch, tokens, capacity], true where a token attends to a slot in layers without a window
    positions  int64 [batch, tokens], of the tokens in their sequences
    start      int64 [batch], the slot of a row's first token
    """

    def __init__(self, mask: Tensor, positions: Tensor, start: Tensor):
        self._mask, self._positions, self._start = mask[:, None], positions, start

    def mask(self, rule: Callable[..., Tensor]) -> Tensor:
        """The mask [batch, 1, tokens, capacity] of a layer whose tokens attend by `rule`, such as a window.

        `rule` is a mask function of transformers. A slot that this step writes is at the position of its token, which
        is not the slot's number in a branch of drafts; every other slot is at its number.
        """
        if rule is causal_mask_function:
            return self._mask
        numbers = torch.arange(self._mask.shape[3])[None]
        token = numbers - self._start[:, None]  # of this step, that a slot is for
        tokens = self._positions.shape[1]
        found = self._positions.gather(1, token.clamp(0, tokens - 1))
        slots = torch.where((token >= 0) & (token < tokens), found, numbers)
        rows = torch.arange(self._mask.shape[0])[:, None, None, None]
        return self._mask & rule(rows, rows[:1] * 0, self._positions[:, None, :, None], slots[:, None, None, :])


_running: list[Step] = []


@contextmanager
def running(step: Step) -> Iterator[None]:
    """Inside this block the masks are those of `step`."""
    _running.append(step)
    try:
        yield
    finally:
        _running.pop()


def _mask(*args: Any, mask_function: Callable[..., Tensor] = causal_mask_function, **options: Any) -> Tensor:
    return _running[-1].mask(mask_function)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention of all layers; returns [batch, tokens, heads, value_dim]."""
    for name, given in options.items():
        if given is not None and name not in WITHOUT_EFFECT and not name.startswith("output_"):
            raise NotImplementedError(f"{type(module).__name__} passes {name} to its attention")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query = query if scale == 1 else query * scale
    if s_aux is None:
        attended = attention(query, key, value, attention_mask, softcap)
    elif softcap is None:
        attended = attention_with_sinks(query, key, value, attention_mask, s_aux)
    else:
        raise NotImplementedError(f"{type(module).__name__} has sinks and a cap of its scores")
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)


def take_over(model: Any) -> None:
    """Let the attention of a `transformers` model, its masks and its experts come from here."""
    model.set_attn_implementation(NAME)
    model.set_experts_implementation(experts.NAME)
