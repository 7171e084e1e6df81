"""A decoder from `transformers` with the inputs and outputs of our graph, as its reference. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.exporters.decoders.caches import StepCache
from intaglio.exporters.decoders.operators import rows_at
from intaglio.networks.draft_network import medusa_states, transferred_states
from intaglio.networks.drafts import MEDUSA, Drafts, matrix_path
from intaglio.networks.early_exit import NEVER
from intaglio.networks.exit_network import before_head


class DecoderModule(nn.Module):
    """A causal language model that takes and returns its cache; its modules keep their paths.

    Inputs and outputs match the graph's, in the same order; caches of any float dtype are computed in float32.
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
        """Return logits [batch, positions wanted, vocab], then the caches with the tokens' keys and values written."""
        cache = _cache(past, write_start)
        states = self._states(input_ids, positions, attention_mask, cache)
        return (self._head(rows_at(states, logit_indices)), *cache.tensors())

    def logits(self, input_ids: Tensor) -> Tensor:
        """The logits [batch, tokens, vocab] of whole sequences [batch, tokens], without a cache."""
        states = self.get_submodule(self._base)(input_ids=input_ids, use_cache=False).last_hidden_state
        logits: Tensor = self._head(states)
        return logits

    def _states(self, input_ids: Tensor, positions: Tensor, attention_mask: Tensor, cache: StepCache) -> Tensor:
        states: Tensor = self._run(input_ids, positions, attention_mask, cache).last_hidden_state
        return states

    def _run(
        self, input_ids: Tensor, positions: Tensor, attention_mask: Tensor, cache: StepCache, **options: bool
    ) -> Any:
        masked = torch.where(attention_mask, 0.0, torch.finfo(torch.float32).min)
        return self.get_submodule(self._base)(
            input_ids=input_ids,
            position_ids=positions,
            attention_mask=masked[:, None],
            past_key_values=cache,
            use_cache=True,
            **options,
        )


class DraftedModule(DecoderModule):
    """The same for a model with drafts: takes `draft_indices` and hidden transfer's inputs before the caches."""

    def __init__(self, model: Any, drafts: Drafts, matrices: Mapping[str, Tensor]):
        """`matrices`: by their names in the graph, which are also those of this module's layers."""
        super().__init__(model)
        self.drafts = nn.ModuleList()
        for step in range(drafts.steps):
            weight = matrices[f"{matrix_path(step)}.weight"].float()
            outputs, inputs = weight.shape
            layer = nn.Linear(inputs, outputs, bias=False)
            layer.weight = nn.Parameter(weight)
            self.drafts.append(layer)
        self._record = drafts

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attention_mask: Tensor,
        write_start: Tensor,
        logit_indices: Tensor,
        *rest: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return logits, those of the drafts [batch, drafting, steps, vocab], and the caches."""
        draft_indices, *more = rest
        if self._record.kind == MEDUSA:
            cache = _cache(more, write_start)
            states = self._states(input_ids, positions, attention_mask, cache)
            origins = rows_at(states, draft_indices)
            drafted = torch.stack([medusa_states(matrix, origins) for matrix in self.drafts], 2)
        else:
            draft_positions, draft_mask, *past = more
            cache = _cache(past, write_start)
            states = transferred_states(
                self.get_submodule(self._base), list(self.drafts), self._record.layers, input_ids, positions,
                attention_mask, draft_indices, draft_positions, draft_mask, cache,
            )  # fmt: skip
            batch, drafting = draft_indices.shape
            by_step = states[:, input_ids.shape[1] :].reshape(batch, len(self.drafts), drafting, -1)
            drafted = by_step.transpose(1, 2)
        return (self._head(rows_at(states, logit_indices)), self._head(drafted), *cache.tensors())


class EarlyExitModule(DecoderModule):
    """The same for a model with an early exit after its first `layer` blocks."""

    def __init__(self, model: Any, layer: int):
        super().__init__(model)
        self._layer = layer

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attention_mask: Tensor,
        write_start: Tensor,
        logit_indices: Tensor,
        *past: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return logits and those of the exit, both [batch, positions wanted, vocab], and the caches."""
        cache = _cache(past, write_start)
        found = self._run(input_ids, positions, attention_mask, cache, output_hidden_states=True)
        early = before_head(self.get_submodule(self._base), rows_at(found.hidden_states[self._layer], logit_indices))
        return (self._head(rows_at(found.last_hidden_state, logit_indices)), self._head(early), *cache.tensors())

    def exit_logits(self, input_ids: Tensor) -> Tensor:
        """Like `logits`, for the early exit."""
        base = self.get_submodule(self._base)
        states = base(input_ids=input_ids, use_cache=False, output_hidden_states=True).hidden_states[self._layer]
        logits: Tensor = self._head(before_head(base, states))
        return logits


class SaturationModule(DecoderModule):
    """The same for a model whose tokens exit once their state is saturated: takes `exit_thresholds` before caches."""

    def __init__(self, model: Any, blocks: Any):
        """`blocks`: the list of the model's Transformer blocks; their outputs are discarded once a token has exited.

        A block computes keys and values from its input states, so the state of an exited token is propagated.
        """
        super().__init__(model)
        self._thresholds = torch.full([1, 1], NEVER)
        self._exited = self._blocks_run = torch.zeros(0)
        blocks[0].register_forward_pre_hook(self._begin)
        for block in blocks:
            block.register_forward_hook(self._after)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attention_mask: Tensor,
        write_start: Tensor,
        logit_indices: Tensor,
        *rest: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return logits, the blocks run for each wanted token [batch, positions wanted], and the caches."""
        thresholds, *past = rest
        cache = _cache(past, write_start)
        self._thresholds = thresholds[:, None]
        states = self._states(input_ids, positions, attention_mask, cache)
        self._thresholds = torch.full([1, 1], NEVER)
        return (
            self._head(rows_at(states, logit_indices)),
            self._blocks_run.gather(1, logit_indices),
            *cache.tensors(),
        )

    def _begin(self, block: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._exited = torch.zeros(inputs[0].shape[:2], dtype=torch.bool)
        self._blocks_run = torch.zeros(inputs[0].shape[:2], dtype=torch.int64)

    def _after(self, block: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """The value to use as the output of a block, given its input and output, both [batch, tokens, width]."""
        states = torch.where(self._exited[..., None], inputs[0], output)
        self._blocks_run = self._blocks_run + ~self._exited
        similar = torch.nn.functional.cosine_similarity(inputs[0], states, dim=-1)
        self._exited = self._exited | (similar > self._thresholds)
        return states


def _cache(past: Sequence[Tensor], write_start: Tensor) -> StepCache:
    """The caches `past`, keys and values of each layer in turn, in float32."""
    wide = [tensor.float() for tensor in past]
    return StepCache(dict(enumerate(zip(wide[::2], wide[1::2], strict=True))), write_start)
