"""Blocks of every type are read as llama.cpp's own library reads them, to the bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.exporters.checkpoints.gguf.blocks import TYPES

DECODED = [number for number, kind in TYPES.items() if kind.decode]


@pytest.mark.parametrize("number", TYPES)
def test_type_has_the_name_and_sizes_of_the_library(number: int) -> None:
    kind, theirs = TYPES[number], gguf.GGMLQuantizationType(number)
    assert (kind.name, (kind.elements, kind.bytes)) == (theirs.name, gguf.GGML_QUANT_SIZES[theirs])


@settings(max_examples=examples(200))
@given(st.data())
def test_any_bytes_are_decoded_as_by_the_library(data: st.DataObject) -> None:
    number = data.draw(st.sampled_from(DECODED))
    kind, seed = TYPES[number], data.draw(st.integers(0, 2**32 - 1))
    raw = np.random.default_rng(seed).integers(0, 256, (data.draw(st.integers(1, 5)), kind.bytes), np.uint8)
    assert kind.decode is not None
    with np.errstate(all="ignore"):  # random float16 numbers may be infinite, or NaN
        expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(number))
        codes = kind.decode(raw)
        levels = np.arange(256, dtype=np.float32) - codes.zero_point if kind.levels is None else kind.levels
        found = levels[codes.numbers].reshape(len(raw), kind.groups, -1) * codes.scales[:, :, None]
        if codes.minimums is not None:
            found = found - codes.minimums[:, :, None]
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)
    assert (codes.minimums is not None) == kind.has_minimums
    assert codes.numbers.max() < 2**kind.bits
    assert codes.scales.shape == (len(raw), kind.groups)
