"""Codes in words of 32 bits: a stream of bits per row, the lowest first."""

from __future__ import annotations

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.errors import GraphError
from intaglio.plugins.bit_packing import pack, unpack


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.integers(0, 4), words=st.integers(0, 5), seed=st.integers(0, 99), dtype=st.sampled_from(["uint8", "int64"])
)
def test_row_is_a_stream_of_bits(bits: int, rows: int, words: int, seed: int, dtype: str) -> None:
    numbers = np.random.default_rng(seed).integers(0, 2**bits, (rows, 32 * words)).astype(dtype)
    packed = pack(numbers, bits)
    assert (packed.dtype, packed.shape) == (np.int32, (rows, words * bits))
    for row, stream in zip(numbers, packed, strict=True):
        expected = sum(int(number) << (index * bits) for index, number in enumerate(row))
        assert int.from_bytes(stream.astype("<i4").tobytes(), "little") == expected
    read = unpack(packed, bits)
    assert read.dtype == np.uint8 and np.array_equal(read, numbers)


def test_columns_of_a_larger_array_are_packed() -> None:
    numbers = np.arange(4 * 96).reshape(4, 96) % 16
    assert np.array_equal(unpack(pack(numbers, 4)[:, 4:8], 4), numbers[:, 32:64])


@pytest.mark.parametrize("bits", [3, 4, 5, 8])
def test_incomplete_word_is_refused(bits: int) -> None:
    with pytest.raises(GraphError, match="33"):
        pack(np.zeros((1, 33), np.uint8), bits)
