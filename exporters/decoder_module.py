"""A decoder from `transformers` with the inputs and outputs of our graph, to compare the graph with. Imports torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache


class DecoderModule(nn.Module):
    """A causal language model whose cache is passed in and returned; its modules keep their paths.

    Inputs and outputs are those of the graph, in its order; caches of any float dtype are computed in float32.
    """

    def __init__(self, model: Any):
        super().__init__()
        for name, child in model.named_children():
            self.add_module(name, child)
        self._base, self._head = model.base_model_prefix, model.get_output_embeddings()

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attention_mask: Tensor,
        write_start: Tensor,
        logit_indices: Tensor,
        *past: Tensor,
    ) -> tuple[Tensor, ...]:
        """Logits [batch, positions wanted, vocab], then the caches with the tokens' keys and values in them."""
        cache = ScatteredCache([tensor.float() for tensor in past], write_start)
        masked = torch.where(attention_mask, 0.0, torch.finfo(torch.float32).min)
        hidden = self.get_submodule(self._base)(
            input_ids=input_ids,
            position_ids=positions,
            attention_mask=masked[:, None],
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        rows = logit_indices[..., None].expand(-1, -1, hidden.shape[-1])
        return (self._head(hidden.gather(1, rows)), *cache.tensors)


class ScatteredCache(Cache):
    """Buffers [batch, kv_heads, capacity, head_dim], keys and values in turn, written from `start` [batch] on."""

    def __init__(self, tensors: list[Tensor], start: Tensor):
        super().__init__(layers=[])
        self.tensors = [tensor.clone() for tensor in tensors]
        self.start = start

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Nothing that is asked of it depends on it: positions and mask are given."""
        return 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values; return the whole buffers."""
        slots = self.start[:, None] + torch.arange(key_states.shape[2])
        rows = torch.arange(len(slots))[:, None]
        keys, values = self.tensors[2 * layer_idx : 2 * layer_idx + 2]
        for buffer, new in ((keys, key_states), (values, value_states)):
            buffer[rows, :, slots] = new.transpose(1, 2)
        return keys, values
