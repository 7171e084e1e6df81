"""Batch selection: no text is lost or starves, and batches have little padding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.errors import UsageError
from intaglio.serve.workers.batch_plan import FREE_PADDING, BatchLimits, next_batch

LENGTHS = st.lists(st.integers(1, 512), min_size=1, max_size=80)
LIMITS = st.builds(BatchLimits, st.integers(1, 40), st.integers(1, 2000), st.floats(0, 1))


def batches(lengths: list[int], limits: BatchLimits) -> list[list[int]]:
    """The places of the texts, batch by batch, until none is left."""
    left, found = list(range(len(lengths))), []
    while left:
        places = next_batch([lengths[place] for place in left], limits)
        found.append([left[place] for place in places])
        assert 0 in places  # the oldest is never overtaken
        left = [place for index, place in enumerate(left) if index not in places]
    return found


@given(LENGTHS, LIMITS)
def test_every_text_is_in_one_batch_in_arrival_order(lengths: list[int], limits: BatchLimits) -> None:
    found = batches(lengths, limits)
    assert sorted(place for batch in found for place in batch) == list(range(len(lengths)))
    assert all(batch == sorted(batch) for batch in found)


@given(LENGTHS, LIMITS)
def test_batches_obey_their_limits(lengths: list[int], limits: BatchLimits) -> None:
    for batch in batches(lengths, limits):
        longest = max(lengths[place] for place in batch)
        assert len(batch) <= limits.texts
        assert len(batch) * longest <= limits.tokens or len(batch) == 1
        assert all(longest - lengths[place] <= max(limits.padding * longest, FREE_PADDING) for place in batch)


@given(st.lists(st.integers(1, 512), min_size=1, max_size=80), st.integers(1, 40))
def test_equal_lengths_fill_batches_in_arrival_order(lengths: list[int], most: int) -> None:
    found = batches([7] * len(lengths), BatchLimits(texts=most, tokens=7 * 40))
    assert [len(batch) for batch in found[:-1]] == [most] * (len(found) - 1)
    assert [place for batch in found for place in batch] == list(range(len(lengths)))


def test_long_text_does_not_join_short_ones() -> None:
    assert batches([10, 500, 11, 490, 9], BatchLimits()) == [[0, 2, 4], [1, 3]]


def test_short_text_does_not_join_long_ones() -> None:
    """Its padding would be a small part of that batch, and many times its own length."""
    assert batches([200] * 8 + [4], BatchLimits()) == [list(range(8)), [8]]


def test_text_longer_than_a_batch_runs_alone() -> None:
    assert batches([300, 300, 10], BatchLimits(tokens=256)) == [[0], [1], [2]]


@pytest.mark.parametrize("options", [{"texts": 0}, {"tokens": 0}, {"padding": 1.5}])
def test_out_of_range_limits_raise_usage_error(options: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="expected"):
        BatchLimits(**options)
