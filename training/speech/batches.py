"""Batches of utterances of similar length, so that little is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Features = npt.NDArray[np.float16]


@dataclass(frozen=True)
class Example:
    """An utterance: its features [frames, bands], and its text as tokens and as letters."""

    features: Features
    tokens: tuple[int, ...] = ()
    letters: tuple[int, ...] = ()


class Targets(NamedTuple):
    """The texts of a batch's rows, as tokens."""

    tokens: Tensor  # int64, those of all rows one after the other
    counts: Tensor  # int64 [batch]


@dataclass(frozen=True)
class Batch:
    """Padded examples."""

    features: Tensor  # float32 [batch, frames, bands]
    frames: Tensor  # int64 [batch]
    tokens: Targets
    letters: Targets


def collate(examples: Sequence[Example]) -> Batch:
    """Pad `examples` with zeros to the longest."""
    frames = [len(example.features) for example in examples]
    features = torch.zeros(len(examples), max(frames), examples[0].features.shape[1])
    for row, example in enumerate(examples):
        features[row, : frames[row]] = torch.from_numpy(example.features.astype(np.float32))
    tokens, letters = [each.tokens for each in examples], [each.letters for each in examples]
    return Batch(features, torch.tensor(frames), _targets(tokens), _targets(letters))


def _targets(rows: Sequence[tuple[int, ...]]) -> Targets:
    tokens = torch.tensor([token for row in rows for token in row], dtype=torch.int64)
    return Targets(tokens, torch.tensor([len(row) for row in rows]))


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
