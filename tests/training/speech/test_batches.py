from __future__ import annotations

import numpy as np
import torch

from intaglio.training.speech.batches import Example, batches, collate

BANDS = 4


def examples(lengths: list[int]) -> list[Example]:
    """Every feature of example i is i + 1, its tokens are i times the token i."""
    return [
        Example(np.full((length, BANDS), index + 1, np.float16), (index,) * index)
        for index, length in enumerate(lengths)
    ]


LENGTHS = [int(length) for length in np.random.default_rng(0).integers(1, 90, 200)]


def test_batch_is_padded_with_zeros_and_keeps_every_token() -> None:
    batch = collate(examples([3, 5, 2]))
    assert batch.features.shape == (3, 5, BANDS) and batch.features.dtype == torch.float32
    assert batch.frames.tolist() == [3, 5, 2]
    assert batch.features[:, :, 0].tolist() == [[1, 1, 1, 0, 0], [2] * 5, [3, 3, 0, 0, 0]]
    assert batch.tokens.tokens.tolist() == [1, 2, 2]
    assert batch.tokens.counts.tolist() == [0, 1, 2]
    assert batch.letters.tokens.tolist() == [] and batch.letters.counts.tolist() == [0, 0, 0]


def test_each_example_is_in_one_batch_within_the_size_limit() -> None:
    given = examples(LENGTHS)
    for random in (None, np.random.default_rng(1)):
        made = list(batches(given, 300, random))
        assert sorted(id(each) for group in made for each in group) == sorted(id(each) for each in given)
        assert all(len(group) * max(len(each.features) for each in group) <= 300 for group in made)


def test_example_longer_than_a_batch_gets_its_own_batch() -> None:
    made = list(batches(examples([10, 500, 20]), 100))
    assert sorted([len(each.features) for each in group] for group in made) == [[10, 20], [500]]


def test_batches_have_little_padding() -> None:
    for random in (None, np.random.default_rng(1)):
        made = list(batches(examples(LENGTHS), 300, random))
        padded = sum(len(group) * max(len(each.features) for each in group) for group in made)
        assert padded < 1.25 * sum(LENGTHS)


def test_order_depends_on_the_seed_alone() -> None:
    given = examples(LENGTHS)

    def order(seed: int) -> list[list[int]]:
        return [[id(each) for each in group] for group in batches(given, 300, np.random.default_rng(seed))]

    assert order(1) == order(1)
    assert order(1) != order(2)
    lengths = [len(group[0].features) for group in batches(given, 300, np.random.default_rng(1))]
    assert lengths != sorted(lengths)


def test_no_examples_give_no_batch() -> None:
    assert list(batches([], 100)) == []
