"""The masks of attention in a traced encoder, in place of those that `transformers` makes. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, bidirectional_mask_function

EAGER = "eager"  # the name in transformers of attention by products, which is traced


@contextmanager
def short_masks() -> Iterator[None]:
    """Inside this block masks take few nodes, and have one row for all queries where each attends to all tokens."""
    ALL_MASK_ATTENTION_FUNCTIONS[EAGER] = _mask
    try:
        yield
    finally:
        del ALL_MASK_ATTENTION_FUNCTIONS[EAGER]  # which uncovers that of transformers


def _mask(
    *,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., Tensor],
    attention_mask: Tensor | None,
    dtype: torch.dtype,
    **options: Any,
) -> Tensor | None:
    """The mask added to scores, 0 for tokens, the lowest number elsewhere: [batch, 1, 1 or sequence, sequence].

    `mask_function` is a rule of transformers by which tokens attend, such as a window; `attention_mask` is bool
    [batch, sequence], False at padding. None if each token attends to all: the patches of an image.
    """
    if attention_mask is None:
        if mask_function is bidirectional_mask_function:
            return None
        attention_mask = torch.ones(1, kv_length, dtype=torch.bool)
    keep = attention_mask[:, None, None, :]
    if mask_function is not bidirectional_mask_function:
        rows = torch.arange(attention_mask.shape[0])[:, None, None, None]
        queries, keys = torch.arange(q_length)[None, None, :, None], torch.arange(kv_length)[None, None, None, :]
        keep = keep & mask_function(rows, rows[:1] * 0, queries, keys)
    lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype)
    return torch.where(keep, torch.zeros((), dtype=dtype), lowest)
