"""Padding is removed from arrays over tokens, and from no other array."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from intaglio.accuracy.padding import without_padding


@given(batch=st.integers(1, 4), sequence=st.integers(1, 5), width=st.integers(1, 5), data=st.data())
def test_padding_is_removed_and_tokens_are_kept(batch: int, sequence: int, width: int, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, sequence), min_size=batch, max_size=batch))
    mask = (np.arange(sequence) < np.array(lengths)[:, None]).astype(np.int64)
    hidden = np.arange(batch * sequence * width).reshape(batch, sequence, width)
    expected = [hidden[row, :length] for row, length in enumerate(lengths)]
    np.testing.assert_array_equal(without_padding(hidden, mask), np.concatenate(expected))


@given(batch=st.integers(1, 4), sequence=st.integers(1, 5))
def test_embedding_as_wide_as_the_sequence_length_is_kept(batch: int, sequence: int) -> None:
    mask = np.zeros((batch, sequence), np.int64)
    pooled = np.ones((batch, sequence))
    assert without_padding(pooled, mask) is pooled
