"""The drafts of an exported decoder, and those of the source model, for every token of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Decoder
from intaglio.exporters.check import open_checked
from intaglio.runtime.sessions.draft_inputs import drafted
from intaglio.runtime.sessions.step import (
    ATTENTION_MASK,
    DRAFT_LOGITS,
    LOGITS,
    empty_caches,
    next_caches,
    step_feeds,
)

Logits = npt.NDArray[np.float32]


def source_drafts(module: Any, decoder: Decoder, text: list[int]) -> Logits:
    """The source model's [tokens, drafts, vocab] for a sequence run in one pass; `module` is a `DraftedModule`."""
    import torch

    ids = np.array([text])
    feeds = step_feeds(decoder, ids)
    shape = (1, decoder.kv_heads, feeds[ATTENTION_MASK.name].shape[2], decoder.head_dim)
    caches = [np.zeros(shape, np.float32)] * (2 * decoder.layers)
    outputs = module(*map(torch.from_numpy, [*feeds.values(), *caches]))
    drafts: Logits = outputs[1][0].numpy()
    return drafts


def stepwise_drafts(
    model: Path, decoder: Decoder, batch: list[list[int]], cuts: list[slice], blocks: Sequence[str] = ()
) -> list[list[Logits]]:
    """The logits [tokens, vocab] and drafts [tokens, drafts, vocab] of each sequence of a batch, through the cache.

    The sequences run piece by piece, by `cuts`; each piece overwrites the slots in which the previous one drafted.
    `blocks`: where to cut the graph, as in `open_checked`.
    """
    longest = max(map(len, batch))
    capacity = 2 * longest + drafted(decoder, longest)
    lengths = np.zeros(len(batch), np.int64)
    collected: list[list[list[Logits]]] = [[[], []] for _ in batch]
    with open_checked(model, blocks) as engine:
        caches = empty_caches(engine.inputs, len(batch), capacity)
        for piece in cuts:
            counts = np.array([len(text[piece]) for text in batch])
            ids = np.zeros((len(batch), int(counts.max())), np.int64)
            for row, text, count in zip(ids, batch, counts, strict=True):
                row[:count] = text[piece]
            outputs = engine.run({**step_feeds(decoder, ids, lengths, capacity), **caches})
            caches = next_caches(outputs)
            lengths = lengths + counts
            for index, count in enumerate(counts):
                for kept, name in zip(collected[index], (LOGITS, DRAFT_LOGITS), strict=True):
                    kept.append(np.asarray(outputs[name][index, :count], np.float32))
    return [[np.concatenate(rows) for rows in each] for each in collected]
