"""What `transformers` asks for while a decoder computes a step: masks, and attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from intaglio.exporters.decoders import experts
from intaglio.exporters.decoders.operators import attention

NAME = "intaglio"  # of this attention among those of transformers
# What models tell the attention beside its inputs, and what does not change its result here: windows are in the mask.
WITHOUT_EFFECT = {"dropout", "sliding_window", "is_causal", "position_ids", "use_cache", "layer_idx", "return_dict"}


class Step:
    """The inputs of a step that masks depend on.

    mask       bool [batch, tokens, capacity], true where a token attends to a slot in layers without a window
    positions  int64 [batch, tokens], of the tokens in their sequences
    start      int64 [batch], the slot of a row's first token
    source     bool [batch, source], false at padding; of a decoder that also attends to an encoder's states
    """

    def __init__(self, mask: Tensor, positions: Tensor, start: Tensor, source: Tensor | None = None):
        self._mask, self.positions, self._start, self._source = mask, positions, start, source

    def with_rows(self, positions: Tensor, mask: Tensor) -> Step:
        """The step with further rows after its tokens, at `positions` [batch, rows], with their `mask`."""
        every = torch.cat([self._mask, mask], 1), torch.cat([self.positions, positions], 1)
        return Step(*every, self._start)

    def with_source(self, source: Tensor) -> Step:
        """The step of a decoder that also attends to a source."""
        return Step(self._mask, self.positions, self._start, source)

    def mask(self, rule: Callable[..., Tensor]) -> Tensor:
        """The mask [batch, 1, tokens, capacity] of a layer whose tokens attend by `rule`, such as a window.

        `rule` is a mask function of transformers. A slot that this step writes is at the position of its token, which
        is not the slot's number in a branch of drafts; every other slot is at its number. To a source, every token
        attends in the same way.
        """
        if self._source is not None and rule is bidirectional_mask_function:
            return to_source(self._source, self.positions.shape[1])
        allowed = self._mask[:, None]
        if rule is causal_mask_function:
            return allowed
        numbers = torch.arange(allowed.shape[3])[None]
        token = numbers - self._start[:, None]  # of this step, that a slot is for
        tokens = self.positions.shape[1]
        found = self.positions.gather(1, token.clamp(0, tokens - 1))
        slots = torch.where((token >= 0) & (token < tokens), found, numbers)
        rows = torch.arange(allowed.shape[0])[:, None, None, None]
        return allowed & rule(rows, rows[:1] * 0, self.positions[:, None, :, None], slots[:, None, None, :])


def to_source(source: Tensor, rows: int) -> Tensor:
    """The mask [batch, 1, rows, source] of rows that attend to `source`: ONNX Runtime requires each of them."""
    return source[:, None, None].expand(-1, 1, rows, -1)


class EncoderPass:
    """What masks depend on while an encoder reads `source`, bool [batch, source], false at padding."""

    def __init__(self, source: Tensor):
        self._source = source

    def mask(self, rule: Callable[..., Tensor]) -> Tensor:
        """The mask [batch, 1, source, source] of a layer whose tokens attend by `rule`, such as a window."""
        every = to_source(self._source, self._source.shape[1])
        if rule is bidirectional_mask_function:
            return every
        places = torch.arange(self._source.shape[1])
        rows = torch.arange(self._source.shape[0])[:, None, None, None]
        return every & rule(rows, rows[:1] * 0, places[None, None, :, None], places[None, None, None])

    def holds(self, *tensors: Tensor) -> bool:
        """Return True: there is no cache that keys and values could be computed from."""
        return True


class Everywhere:
    """The masks of a model all of whose tokens attend to all others, such as the patches of an image."""

    def mask(self, rule: Callable[..., Tensor]) -> None:
        """Return None: there is no mask."""

    def holds(self, *tensors: Tensor) -> bool:
        """Return True: see `EncoderPass`."""
        return True


Pass = Step | EncoderPass | Everywhere
_running: list[tuple[Pass, Any]] = []


@contextmanager
def running(step: Pass, cache: Any) -> Iterator[None]:
    """Inside this block `step` gives the masks, and the layers write their keys and values into `cache`."""
    _running.append((step, cache))
    try:
        yield
    finally:
        _running.pop()


def _mask(*args: Any, mask_function: Callable[..., Tensor] = causal_mask_function, **options: Any) -> Tensor | None:
    return _running[-1][0].mask(mask_function)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
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
    direct = _running[-1][1].holds(key, value)
    attended = attention(query, key, value, attention_mask, direct, softcap, s_aux)
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)


def take_over(model: Any) -> None:
    """Let the attention of a `transformers` model, its masks and its experts come from here."""
    model.set_attn_implementation(NAME)
    model.set_experts_implementation(experts.NAME)
