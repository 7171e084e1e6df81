"""A causal language model of `transformers` with the inputs and outputs of our decoders. Imports torch."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from intaglio.exporters.decoders.caches import StepCache
from intaglio.exporters.decoders.operators import rows_at
from intaglio.exporters.decoders.traced.step import Step, running, take_over


class TracedDecoder(nn.Module):
    """A model that takes and returns its caches; its modules keep their paths.

    Traced it becomes the graph; run, it computes the same in torch.
    """

    def __init__(self, model: Any):
        super().__init__()
        for name, child in model.named_children():
            self.add_module(name, child)
        self._model: tuple[Any] = (model,)  # not a module of this one, or each would have two paths
        take_over(model)
        self.cached: list[int] = []  # the layers of which `forward` takes caches

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
        pairs = dict(zip(self.cached, zip(past[::2], past[1::2], strict=True), strict=True))
        cache = StepCache(pairs, write_start)
        logits = self.logits_at(input_ids, positions, attention_mask, write_start, logit_indices, cache)
        return (logits.float(), *cache.tensors())

    def logits_at(
        self, input_ids: Tensor, positions: Tensor, mask: Tensor, start: Tensor, indices: Tensor, cache: Any
    ) -> Tensor:
        """The logits of the tokens at `indices`; `cache` takes the place of the model's own."""
        (model,) = self._model
        head = model.get_output_embeddings()
        # Before the head, so that caps and scales behind it are part of the model.
        hook = head.register_forward_pre_hook(lambda module, inputs: (rows_at(inputs[0], indices), *inputs[1:]))
        try:
            with running(Step(mask, positions, start)):
                logits: Tensor = model(
                    input_ids=input_ids, position_ids=positions, past_key_values=cache, use_cache=True
                ).logits
        finally:
            hook.remove()
        return logits
