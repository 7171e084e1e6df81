"""The training samples of a network, texts or rows of arrays: kept single so that they can be shuffled into batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.text.inputs import InputsUsed, load_inputs

Sample = dict[str, Array]  # input name -> array whose first axis is 1

HELD_OUT = 10  # one in 10 samples is held out
MOST_HELD_OUT = 128
ALL = 2**31 - 1  # samples


def load_samples(bundle: Bundle, data: str | Path, max_tokens: int) -> tuple[list[Sample], InputsUsed]:
    """All samples in `data` (see `intaglio.runtime.text.inputs`), truncated to `max_tokens`. Raises `UsageError`."""
    if max_tokens < 2:
        raise UsageError(f"max tokens {max_tokens}: expected at least 2.")
    truncation = min(max_tokens, bundle.manifest.truncation or max_tokens)
    cut = Bundle(bundle.path, msgspec.structs.replace(bundle.manifest, truncation=truncation))
    return load_inputs(cut, data, ALL, 1)


def split(samples: Sequence[Sample], random: np.random.Generator, where: str) -> tuple[list[Sample], list[Sample]]:
    """The samples to train on, and those held out: a tenth, at least one and at most 128. Raises `UsageError`."""
    if len(samples) < 2:
        raise UsageError(
            f"{where}: {len(samples)} texts or rows, expected at least 2: one to train on, one to hold out."
        )
    held = min(max(1, len(samples) // HELD_OUT), MOST_HELD_OUT)
    order = random.permutation(len(samples))
    return [samples[index] for index in order[held:]], [samples[index] for index in order[:held]]


def batches(samples: Sequence[Sample], size: int) -> Iterator[Sample]:
    """Batches of all samples in order; the last batch may be smaller."""
    for start in range(0, len(samples), size):
        yield collate(samples[start : start + size])


def shuffled(samples: Sequence[Sample], size: int, random: np.random.Generator) -> Iterator[Sample]:
    """Endless batches; each sample appears once per epoch."""
    size = min(size, len(samples))
    while True:
        order = random.permutation(len(samples))
        for start in range(0, len(order) - size + 1, size):
            yield collate([samples[index] for index in order[start : start + size]])


def collate(samples: Sequence[Sample]) -> Sample:
    """Samples as one batch, shorter ones padded with zeros at the end of their axes: the mask is 0 there."""
    made = {}
    for name in samples[0]:
        arrays = [sample[name] for sample in samples]
        shape = np.max([array.shape for array in arrays], axis=0)
        widths = [[(0, long - short) for long, short in zip(shape, array.shape, strict=True)] for array in arrays]
        padded = [np.pad(array, width) for array, width in zip(arrays, widths, strict=True)]
        made[name] = np.concatenate(padded)
    return made
