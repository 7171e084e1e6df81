"""The torch modules that are traced: an encoder from `transformers` with our head. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.exporters.encoders.sentence_transformers import SentenceHead


class Encoder(nn.Module):
    """A `transformers` model whose inputs are positional and whose outputs are a tuple.

    Inputs: int64 [batch, sequence] each, in the family's order. Outputs, in the order of `output_names`:
    `last_hidden_state` [batch, sequence, hidden] or `logits`, then for sentence models `sentence_embedding`
    float32 [batch, hidden · poolings].
    """

    def __init__(self, model: nn.Module, inputs: tuple[str, ...], first_output: str, head: SentenceHead | None):
        super().__init__()
        self.model = model
        self.input_names = inputs
        self.first_output = first_output
        self.head = Pooling(head) if head else None
        self.output_names = (self.first_output, *(["sentence_embedding"] if head else []))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the model on its inputs in order."""
        named: Mapping[str, Tensor] = dict(zip(self.input_names, inputs, strict=True))
        output: Any = self.model(**{**named, "attention_mask": self.additive_mask(named["attention_mask"])})
        first: Tensor = output[self.first_output]
        if self.head is None:
            return (first,)
        return first, self.head(first, named["attention_mask"])

    def additive_mask(self, attention_mask: Tensor) -> Tensor:
        """The mask added to attention scores, [batch, 1, 1, sequence]: 0 for tokens, the lowest number for padding.

        `transformers` uses a 4-D mask unchanged. From a 2-D mask it would build one row per query, all equal, with some
        twenty nodes of index arithmetic.
        """
        keep = attention_mask[:, None, None, :] != 0
        dtype = next(self.model.parameters()).dtype
        return torch.where(keep, torch.zeros((), dtype=dtype), torch.full((), torch.finfo(dtype).min, dtype=dtype))


class Pooling(nn.Module):
    """Sentence embedding from hidden states; computed in float32 for any dtype of the encoder."""

    def __init__(self, head: SentenceHead):
        super().__init__()
        self.poolings = head.poolings
        self.normalize = head.normalize

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """`hidden` [batch, sequence, width], `attention_mask` [batch, sequence] -> float32 [batch, width · n]."""
        hidden = hidden.float()
        mask = attention_mask.unsqueeze(-1).float()
        pooled = torch.cat([POOL[name](hidden, mask) for name in self.poolings], dim=-1)
        return nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


def _mean_sqrt_len(hidden: Tensor, mask: Tensor) -> Tensor:
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9).sqrt()


def _max(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden.masked_fill(mask == 0, -1e9).max(1).values


def _cls(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden[:, 0]


POOL = {"cls": _cls, "max": _max, "mean": _mean, "mean_sqrt_len_tokens": _mean_sqrt_len}
