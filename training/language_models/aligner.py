"""Fine-tune a small model on the output of a large one, and measure how often they agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from intaglio.training.language_models.fine_tuner import follow, optimiser_of, risen
from intaglio.training.language_models.written_texts import WrittenText


class Alignment(msgspec.Struct):
    """How well a small model predicts the tokens that the large one generated."""

    loss: float  # nats per token, the cross-entropy to the large model's tokens
    agreement: float  # fraction of these tokens that are the small model's top-1


class Aligner:
    """Trains `network` (of transformers), a causal language model or an encoder-decoder."""

    def __init__(self, network: Any, learning_rate: float):
        self._network = network
        self._optimiser, self._rates = optimiser_of(network.parameters(), learning_rate, risen)

    def step(self, texts: Sequence[WrittenText]) -> None:
        """Run one optimiser step. Raises `GraphError` if the loss becomes NaN or infinite."""
        self._network.train()
        self._optimiser.zero_grad()
        loss = cross_entropy(*self._predictions(texts))
        loss.backward()  # type: ignore[no-untyped-call]
        follow(loss, self._network.parameters(), self._optimiser, self._rates)

    @torch.no_grad()
    def measure(self, texts: Sequence[WrittenText], batch_size: int) -> Alignment:
        """Loss and agreement on the outputs of `texts`, over all their tokens."""
        self._network.eval()
        loss, agreed, count = 0.0, 0, 0
        for start in range(0, len(texts), batch_size):
            logits, written = self._predictions(texts[start : start + batch_size])
            loss += cross_entropy(logits, written, reduction="sum").item()
            agreed += int((logits.argmax(-1) == written).sum())
            count += len(written)
        return Alignment(loss / count, agreed / count)

    def _predictions(self, texts: Sequence[WrittenText]) -> tuple[Tensor, Tensor]:
        """Logits [outputs, vocab] and token ids [outputs] at the positions that the large model generated."""
        tokens, mask = _padded([text.tokens for text in texts])
        ends = mask.sum(1, keepdim=True)
        outputs = torch.tensor([[text.written] for text in texts])
        places = torch.arange(1, tokens.shape[1])
        wanted = (places >= ends - outputs) & (places < ends)
        read = {"input_ids": tokens[:, :-1], "attention_mask": mask[:, :-1]}
        if texts[0].source:
            read = {f"decoder_{name}": tensor for name, tensor in read.items()}
            read["input_ids"], read["attention_mask"] = _padded([text.source for text in texts])
        logits = self._network(**read, use_cache=False).logits
        return logits[wanted], tokens[:, 1:][wanted]


def _padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token ids int64 [rows, longest], padded with 0 at the end, and the mask: 1 at tokens, 0 at padding."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids, mask
