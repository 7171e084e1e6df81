"""Batches of utterances of similar length, so that little is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Features = npt.NDArray[np.float16]


@dataclass(frozen=True)
class Example:
    """An utterance: its features [frames, bands] and its tokens."""

    features: Features
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """Padded examples."""

    features: Tensor  # float32 [batch, frames, bands]
    frames: Tensor  # int64 [batch]
    tokens: Tensor  # int64, those of all rows one after the other
    token_counts: Tensor  # int64 [batch]


def collate(examples: Sequence[Example]) -> Batch:
    """Pad `examples` with zeros to the longest."""
    frames = [len(example.features) for example in examples]
    features = torch.zeros(len(examples), max(frames), examples[0].features.shape[1])
    for row, example in enumerate(examples):
        features[row, : frames[row]] = torch.from_numpy(example.features.astype(np.float32))
    tokens = torch.tensor([token for example in examples for token in example.tokens])
    return Batch(features, torch.tensor(frames), tokens, torch.tensor([len(example.tokens) for example in examples]))


def batches(
    examples: Sequence[Example], frames: int, random: np.random.Generator | None = None
) -> Iterator[list[Example]]:
    """Split `examples` into batches of at most `frames` frames, padding counted; each example is in one of them.

    With `random`, batches come in random order, and examples of similar length are shuffled among each other.
    """
    lengths = np.array([len(example.features) for example in examples], float)
    if random is not None:
        lengths *= random.uniform(0.9, 1.1, len(lengths))
    groups: list[list[Example]] = [[]]
    longest = 0
    for index in np.argsort(lengths, kind="stable"):
        example = examples[index]
        longest = max(longest, len(example.features))
        if groups[-1] and longest * (len(groups[-1]) + 1) > frames:
            groups.append([])
            longest = len(example.features)
        groups[-1].append(example)
    order = np.arange(len(groups)) if random is None else random.permutation(len(groups))
    for place in order:
        if groups[place]:
            yield groups[place]
