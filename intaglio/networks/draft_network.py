"""Drafts in torch, on a `transformers` model: for training, tracing, and the reference of an export. Imports torch.

The model's own blocks compute everything. Its input has a row for each pseudo hidden state, so that masks and rotations
have one, too; hooks leave out those rows until the block where their states enter. No family needs special code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.networks.blocks import blocks, states_of

RowsAt = Callable[[Tensor, Tensor], Tensor]
Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], Any]]


def matrices(steps: int, width: int) -> nn.ModuleList:
    """One linear layer per step ahead, initialised to zeros, without bias."""
    layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(steps))
    for layer in layers:
        nn.init.zeros_(layer.get_parameter("weight"))
    return layers


def medusa_states(matrix: nn.Module, states: Tensor) -> Tensor:
    """The head's input for one step ahead, from the last states [..., width] of the tokens."""
    drafted: Tensor = states + nn.functional.silu(matrix(states))
    return drafted


def rows_of(states: Tensor, indices: Tensor) -> Tensor:
    """The rows [batch, wanted, width] of `states` [batch, tokens, width] at `indices` [batch, wanted]."""
    return states.gather(1, indices[..., None].expand(-1, -1, states.shape[-1]))


def with_pseudo_rows(input_ids: Tensor, draft_indices: Tensor, steps: int) -> Tensor:
    """`input_ids` [batch, tokens], then for each of the steps the ids of the tokens at `draft_indices`.

    The ids are for models that look up more for a row than its first states.
    """
    return torch.cat([input_ids, *[input_ids.gather(1, draft_indices)] * steps], 1)


@contextmanager
def transferring(
    model: Any,
    projections: Sequence[nn.Module],
    layers: Sequence[int],
    draft_indices: Tensor,
    tokens: int,
    cached: bool,
    rows_at: RowsAt = rows_of,
) -> Iterator[None]:
    """While this context is active, pseudo hidden states enter `model`, whose input has a row for each.

    projections    one linear layer per step; before the step's block in `layers`, the pseudo states x + x·W are
                   computed from the states x of a token
    draft_indices  int64 [batch, drafting], the tokens whose states are transferred; row tokens + s · drafting + j is
                   that of step s from draft_indices[j]
    cached         whether the keys of a mask are the slots of a cache, and not the rows
    """
    drafting = draft_indices.shape[1]
    rows = tokens + len(layers) * drafting

    def before_block(index: int) -> Hook:
        absent = tokens + sum(layer < index for layer in layers) * drafting
        present = tokens + sum(layer <= index for layer in layers) * drafting

        def hook(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
            states = states_of(block, args, kwargs)[:, :absent]
            if entering := [matrix for matrix, layer in zip(projections, layers, strict=True) if layer == index]:
                origins = rows_at(states, draft_indices)
                states = torch.cat([states, *(origins + matrix(origins) for matrix in entering)], 1)
            args, kwargs = _of_rows((args, kwargs), rows, present, cached)
            return ((states, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": states})

        return hook

    handles = [
        block.register_forward_pre_hook(before_block(index), with_kwargs=True)
        for index, block in enumerate(blocks(model)[: layers[-1] + 1])
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _of_rows(value: Any, rows: int, present: int, cached: bool) -> Any:
    """`value`, or the tensors in it, with the first `present` of the `rows`.

    Tensors are [batch, rows, ...], and masks [batch, 1, rows, keys].
    """
    if isinstance(value, Tensor) and value.ndim > 1:
        if value.shape[1] == rows:
            return value[:, :present]
        if value.ndim == 4 and value.shape[2] == rows:
            return value[:, :, :present] if cached else value[:, :, :present, :present]
    if isinstance(value, dict):
        return {name: _of_rows(each, rows, present, cached) for name, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_of_rows(each, rows, present, cached) for each in value)
    return value
