"""A causal language model of `transformers` with the inputs and outputs of our decoders. Imports torch.

Run, it is the reference of a bundle; traced, it becomes the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.bundle.bundle import TensorSpec
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.decoders.caches import ShapeCache, Shapes, StepCache
from intaglio.exporters.decoders.operators import EXIT, LAST, branch, marked, rows_at, tracing
from intaglio.exporters.decoders.step import Step, running, take_over
from intaglio.exporters.files.safetensors_file import MappedTensor
from intaglio.networks.blocks import after, before, blocks
from intaglio.networks.draft_network import medusa_states, transferring, with_pseudo_rows
from intaglio.networks.drafts import MEDUSA, Drafts, matrix_path
from intaglio.networks.early_exit import EVERY
from intaglio.networks.exit_network import Saturation, exits
from intaglio.networks.positions import first_position
from intaglio.runtime.sessions.step import (
    BLOCKS_RUN,
    DRAFT_INDICES,
    DRAFT_LOGITS,
    DRAFT_MASK,
    DRAFT_POSITIONS,
    EXIT_LOGITS,
    EXIT_THRESHOLDS,
    LOGITS,
)

HeadInput = Callable[[Tensor], Tensor]


class DecoderModule(nn.Module):
    """A model that takes and returns its caches; its modules keep their paths.

    Inputs and outputs match the graph's, in the same order.
    """

    inputs: tuple[TensorSpec, ...] = ()  # beside those of every decoder, before the caches
    outputs: tuple[str, ...] = (LOGITS,)  # before the caches

    def __init__(self, model: Any):
        super().__init__()
        for name, child in model.named_children():
            self.add_module(name, child)
        self._held: tuple[Any] = (model,)  # not a module of this one, or each would have two paths
        self._first = first_position(model)
        take_over(model)
        self.cached: list[int] = []  # the layers of which `forward` takes caches, once they are known

    @property
    def _network(self) -> Any:
        """The model of `transformers`."""
        return self._held[0]

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attention_mask: Tensor,
        write_start: Tensor,
        logit_indices: Tensor,
        *rest: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return logits [batch, positions wanted, vocab], then the caches with the tokens' keys and values written."""
        further, past = rest[: len(self.inputs)], rest[len(self.inputs) :]
        pairs = dict(zip(self.cached, zip(past[::2], past[1::2], strict=True), strict=True))
        cache = StepCache(pairs, write_start)
        step = Step(attention_mask, positions, write_start)
        found = self.compute(input_ids, step, logit_indices, cache, *further)
        return (*found, *cache.tensors())

    @torch.no_grad()
    def cache_shapes(self) -> Shapes:
        """The caches that the model writes, seen by running it on two sequences of three tokens."""
        cache = ShapeCache()
        ids = torch.zeros(2, 3, dtype=torch.int64)
        step = Step(torch.ones(2, 3, 3, dtype=torch.bool), ids, ids[:, 0])
        self._logits(ids, step, cache, lambda states: states[:, :1])
        return cache.shapes

    def compute(
        self, input_ids: Tensor, step: Step, logit_indices: Tensor, cache: Any, *further: Tensor
    ) -> tuple[Tensor, ...]:
        """The outputs before the caches; `cache` takes the place of the model's own."""
        return (self._logits(input_ids, step, cache, lambda states: rows_at(states, logit_indices)),)

    def _logits(self, input_ids: Tensor, step: Step, cache: Any, head_input: HeadInput) -> Tensor:
        """The logits of the rows that `head_input` returns for the last states, in float32.

        They are chosen before the head, so that caps and scales behind it are part of the model.
        """
        with running(step, cache), before(self._network.get_output_embeddings(), head_input):
            return self._decode(input_ids, step, cache).float()

    def _decode(self, input_ids: Tensor, step: Step, cache: Any) -> Tensor:
        logits: Tensor = self._network(
            input_ids=input_ids, position_ids=step.positions + self._first, past_key_values=cache, use_cache=True
        ).logits
        return logits


class DraftedModule(DecoderModule):
    """The same for a model with drafts: also returns the logits of the tokens after the next one."""

    inputs: tuple[TensorSpec, ...] = (DRAFT_INDICES,)
    outputs = (LOGITS, DRAFT_LOGITS)

    def __init__(self, model: Any, drafts: Drafts, matrices: Mapping[str, Tensor]):
        """`matrices`: by their names in the graph, which are also those of this module's layers."""
        super().__init__(model)
        self.drafts = nn.ModuleList()
        for step in range(drafts.steps):
            weight = matrices[f"{matrix_path(step)}.weight"]
            outputs, inputs = weight.shape
            layer = nn.Linear(inputs, outputs, bias=False, device="meta")
            layer.weight = nn.Parameter(weight, requires_grad=False)
            self.drafts.append(layer)
        self._record = drafts

    def _split(self, logits: Tensor, wanted: int) -> tuple[Tensor, Tensor]:
        """Logits, and those of the drafts [batch, drafting, steps, vocab], from the head's rows."""
        drafted = logits[:, wanted:]
        return logits[:, :wanted], drafted.reshape(drafted.shape[0], -1, len(self.drafts), drafted.shape[-1])


class MedusaModule(DraftedModule):
    """Drafts from the last states of a token."""

    def compute(
        self, input_ids: Tensor, step: Step, logit_indices: Tensor, cache: Any, *further: Tensor
    ) -> tuple[Tensor, ...]:
        """See `DecoderModule`."""
        (draft_indices,) = further

        def head_input(states: Tensor) -> Tensor:
            origins = rows_at(states, draft_indices)
            drafted = torch.stack([medusa_states(matrix, origins) for matrix in self.drafts], 2)
            return torch.cat([rows_at(states, logit_indices), drafted.flatten(1, 2)], 1)

        return self._split(self._logits(input_ids, step, cache, head_input), logit_indices.shape[1])


class TransferModule(DraftedModule):
    """Drafts by hidden transfer."""

    inputs = (DRAFT_INDICES, DRAFT_POSITIONS, DRAFT_MASK)

    def __init__(self, model: Any, drafts: Drafts, matrices: Mapping[str, Tensor]):
        super().__init__(model, drafts, matrices)
        self._last = model.config.get_text_config().max_position_embeddings - 1 - self._first

    def compute(
        self, input_ids: Tensor, step: Step, logit_indices: Tensor, cache: Any, *further: Tensor
    ) -> tuple[Tensor, ...]:
        """See `DecoderModule`."""
        draft_indices, draft_positions, draft_mask = further
        steps, tokens = len(self.drafts), input_ids.shape[1]

        def head_input(states: Tensor) -> Tensor:
            by_step = states[:, tokens:].reshape(states.shape[0], steps, -1, states.shape[-1])
            return torch.cat([rows_at(states, logit_indices), by_step.transpose(1, 2).flatten(1, 2)], 1)

        every = with_pseudo_rows(input_ids, draft_indices, steps)
        # Drafts beyond the end never become text, but a table of positions has no rows for them.
        longer = step.with_rows(draft_positions.clamp(max=self._last), draft_mask)
        layers = self._record.layers
        with transferring(
            self._network, list(self.drafts), layers, draft_indices, tokens, cached=True, rows_at=rows_at
        ):
            logits = self._logits(every, longer, cache, head_input)
        return self._split(logits, logit_indices.shape[1])


class EarlyExitModule(DecoderModule):
    """The same for a model with an early exit after its first `layer` blocks: also returns its logits.

    While tracing, the states of both ends are marked, and the graph gets the exit's output afterwards: computed
    together, the logits of the exit would need all blocks.
    """

    outputs = (LOGITS, EXIT_LOGITS)

    def __init__(self, model: Any, layer: int):
        super().__init__(model)
        self._layer = layer

    def compute(
        self, input_ids: Tensor, step: Step, logit_indices: Tensor, cache: Any, *further: Tensor
    ) -> tuple[Tensor, ...]:
        """See `DecoderModule`."""
        if tracing():
            with self._marked():
                return super().compute(input_ids, step, logit_indices, cache)
        batch, tokens = input_ids.shape

        def head_input(states: Tensor) -> Tensor:
            early, last = states.reshape(batch, 2, tokens, -1).unbind(1)
            return torch.cat([rows_at(last, logit_indices), rows_at(early, logit_indices)], 1)

        with exits(self._network, [self._layer]):
            logits, early = self._logits(input_ids, step, cache, head_input).chunk(2, 1)
        return logits, early

    @contextmanager
    def _marked(self) -> Iterator[None]:
        every = blocks(self._network)
        at_exit = before(every[self._layer], lambda states: marked(states, EXIT))
        with at_exit, after(every[-1], lambda _, states: marked(states, LAST)):
            yield


class SaturationModule(DecoderModule):
    """The same for a model whose tokens exit once their state is saturated; also returns the blocks run for them."""

    inputs = (EXIT_THRESHOLDS,)
    outputs = (LOGITS, BLOCKS_RUN.name)

    def compute(
        self, input_ids: Tensor, step: Step, logit_indices: Tensor, cache: Any, *further: Tensor
    ) -> tuple[Tensor, ...]:
        """See `DecoderModule`."""
        (thresholds,) = further
        saturation = Saturation(thresholds[:, None, None])
        with saturation.watching(self._network, branch):
            logits = self._logits(input_ids, step, cache, lambda states: rows_at(states, logit_indices))
        assert saturation.blocks_run is not None, "early exits need at least two blocks"
        return logits, rows_at(saturation.blocks_run, logit_indices)[..., 0]


def trained_module(
    checkpoint: Checkpoint, model: Any, tensor_of: Callable[[str, MappedTensor], Tensor] | None = None
) -> DecoderModule:
    """`model` with what was trained for it: the drafts or the early exit in the folder of `checkpoint`, if any.

    `tensor_of(name, mapped)` returns the tensor for a matrix of the drafts; by default in float32.
    """
    depth = model.config.get_text_config().num_hidden_layers
    drafts, early_exit = checkpoint.drafts(depth), checkpoint.early_exit(depth)
    if drafts:
        read = tensor_of or (lambda _, mapped: mapped.tensor.float())
        matrices = {name: read(name, mapped) for name, mapped in checkpoint.draft_tensors().items()}
        return (MedusaModule if drafts.kind == MEDUSA else TransferModule)(model, drafts, matrices)
    if early_exit is None:
        return DecoderModule(model)
    return SaturationModule(model) if early_exit.layer == EVERY else EarlyExitModule(model, early_exit.layer)
