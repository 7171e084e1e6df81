"""Drafts in torch, on a `transformers` model: used by training, and as the reference of an export. Imports torch.

The model's own blocks compute everything. A hook before each of them appends the pseudo hidden states to those of the
tokens, and extends the block's mask and rotations; no family needs special code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Enter = Callable[[int, Tensor], Tensor]  # (index of a block, states) -> states


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


def transferred_states(
    base: Any,
    projections: Sequence[nn.Module],
    layers: Sequence[int],
    input_ids: Tensor,
    positions: Tensor,
    attention_mask: Tensor,
    draft_indices: Tensor,
    draft_positions: Tensor,
    draft_mask: Tensor,
    cache: Any = None,
) -> Tensor:
    """The last states [batch, tokens + drafted, width] of the model `base`: the tokens', then the pseudo states'.

    projections      one linear layer per step; before the step's block in `layers`, the pseudo states x + x·W are
                     computed from the states x of a token
    input_ids        int64 [batch, tokens]; `positions` likewise
    attention_mask   bool [batch, tokens, keys], True where a token attends. The keys come from a `cache`; without
                     one they are the tokens, and the pseudo states in their order
    draft_indices    int64 [batch, drafting], the tokens whose states are transferred
    draft_positions  int64 [batch, drafted], drafted = steps · drafting: row s · drafting + j is of step s from
                     draft_indices[j]
    draft_mask       bool [batch, drafted, keys]
    """
    tokens, drafting = input_ids.shape[1], draft_indices.shape[1]
    rows = draft_indices[..., None]
    lowest = torch.finfo(torch.float32).min
    mask = torch.where(torch.cat([attention_mask, draft_mask], 1), 0.0, lowest)[:, None]
    places = torch.cat([positions, draft_positions], 1)

    def enter(index: int, states: Tensor) -> Tensor:
        origins = states.gather(1, rows.expand(-1, -1, states.shape[-1]))
        entering = [projection for projection, layer in zip(projections, layers, strict=True) if layer == index]
        return torch.cat([states, *(origins + projection(origins) for projection in entering)], 1)

    assert draft_positions.shape[1] == len(projections) * drafting, "drafted is steps · drafting"
    with _entered(base, enter, mask, places, tokens, cached=cache is not None):
        states: Tensor = base(
            input_ids=input_ids,
            position_ids=positions,
            attention_mask=mask[:, :, :tokens],
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state
    return states.reshape(len(input_ids), -1, states.shape[-1])[:, : places.shape[1]]


def blocks(base: Any) -> nn.ModuleList:
    """The Transformer blocks of a model without its head, in order."""
    depth = base.config.num_hidden_layers
    lists = (module for module in base.modules() if isinstance(module, nn.ModuleList) and len(module) == depth)
    return next(lists)


@contextmanager
def _entered(base: Any, enter: Enter, mask: Tensor, places: Tensor, tokens: int, cached: bool) -> Iterator[None]:
    """While this context is active, `enter` changes the input of each of the model's blocks.

    mask    [batch, 1, rows, keys]; a block uses as many rows as there are states, and without cache as many keys
    places  int64 [batch, rows], for the rotations

    The last block's states are padded with zero rows to a multiple of `tokens`: GPT-2 reshapes the last states like its
    input, so that additional rows come out as additional sequences.
    """
    rotary = getattr(base, "rotary_emb", None)
    handles = []

    def hook(index: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], Any]]:
        def before(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
            given = inspect.signature(block.forward).bind(*args, **kwargs)
            states = given.arguments["hidden_states"] = enter(index, given.arguments["hidden_states"])
            rows = states.shape[1]
            given.arguments["attention_mask"] = mask[:, :, :rows, : mask.shape[-1] if cached else rows]
            if "position_embeddings" in given.arguments:
                assert rotary is not None
                given.arguments["position_embeddings"] = rotary(states, places[:, :rows])
            return given.args, given.kwargs

        return before

    def fill(block: nn.Module, args: Any, states: Tensor) -> Tensor:
        return nn.functional.pad(states, (0, 0, 0, -states.shape[1] % tokens))

    try:
        for index, block in enumerate(blocks(base)):
            handles.append(block.register_forward_pre_hook(hook(index), with_kwargs=True))
        handles.append(blocks(base)[-1].register_forward_hook(fill))
        yield
    finally:
        for handle in handles:
            handle.remove()
