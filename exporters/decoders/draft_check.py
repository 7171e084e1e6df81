"""The drafts of an exported decoder, and those of the source model: of every token of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.bundle import Decoder
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.engines.onnxruntime_engine import OnnxRuntimeEngine
from intaglio.runtime.sessions.causal_mask import fill_mask
from intaglio.runtime.sessions.draft_inputs import draft_feeds, drafted

Integers = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]


def source_drafts(module: Any, decoder: Decoder, text: list[int]) -> Logits:
    """The source model's [tokens, drafts, vocab], the text run whole; `module` is a `DraftedModule`."""
    import torch

    ids = np.array([text])
    capacity = len(text) + drafted(decoder, len(text))
    feeds = _feeds(decoder, ids, np.zeros(1, np.int64), capacity)
    shape = (1, decoder.kv_heads, capacity, decoder.head_dim)
    caches = [np.zeros(shape, np.float32)] * (2 * decoder.layers)
    outputs = module(*map(torch.from_numpy, [*feeds.values(), *caches]))
    drafts: Logits = outputs[1][0].numpy()
    return drafts


def stepwise_drafts(model: Path, decoder: Decoder, batch: list[list[int]], cuts: list[slice]) -> list[list[Logits]]:
    """Of every text of a batch the logits [tokens, vocab] and the drafts [tokens, drafts, vocab], through the cache.

    The texts are run piece by piece, by `cuts`; what one piece drafted lies where the next one writes.
    """
    longest = max(map(len, batch))
    capacity = 2 * longest + drafted(decoder, longest)
    lengths = np.zeros(len(batch), np.int64)
    collected: list[list[list[Logits]]] = [[[], []] for _ in batch]
    with OnnxRuntimeEngine(model) as engine:
        shape = (len(batch), decoder.kv_heads, capacity, decoder.head_dim)
        caches = {spec.name: np.zeros(shape, spec.dtype) for spec in engine.inputs if spec.name.startswith("past_")}
        for piece in cuts:
            counts = np.array([len(text[piece]) for text in batch])
            ids = np.zeros((len(batch), int(counts.max())), np.int64)
            for row, text, count in zip(ids, batch, counts, strict=True):
                row[:count] = text[piece]
            outputs = engine.run({**_feeds(decoder, ids, lengths, capacity), **caches})
            caches = {name: outputs[name.replace("past_", "present_")] for name in caches}
            lengths = lengths + counts
            for index, count in enumerate(counts):
                for kept, name in zip(collected[index], ("logits", "draft_logits"), strict=True):
                    kept.append(np.asarray(outputs[name][index, :count], np.float32))
    return [[np.concatenate(rows) for rows in each] for each in collected]


def _feeds(decoder: Decoder, ids: Integers, start: Integers, capacity: int) -> dict[str, Array]:
    """What the graph takes besides its caches, in its order, for logits and drafts of all of `ids` [batch, tokens]."""
    every = np.tile(np.arange(ids.shape[1]), (len(ids), 1))
    places = start[:, None] + every
    mask = np.zeros((*ids.shape, capacity), np.bool_)
    fill_mask(mask, places, np.arange(capacity), decoder.sliding_window)
    positions = np.minimum(places, decoder.max_positions - 1)
    feeds: dict[str, Array] = {
        "input_ids": ids,
        "positions": positions,
        "attention_mask": mask,
        "write_start": start,
        "logit_indices": every,
    }
    return feeds | draft_feeds(decoder, positions, mask, start, every)
