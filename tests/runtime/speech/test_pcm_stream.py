"""Raw samples from a stream: independent of piece boundaries, and yielded immediately."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sound_files import RATE

from intaglio.errors import UsageError
from intaglio.runtime.speech.audio_file import read_pcm


class Dribble(io.RawIOBase):
    """A stream that gives a few bytes at a time, like a microphone."""

    def __init__(self, pieces: Iterator[bytes]):
        self.pieces = pieces

    def read(self, size: int = -1) -> bytes:
        return next(self.pieces, b"")


@given(st.lists(st.integers(1, 50), max_size=20))
def test_raw_samples_are_independent_of_piece_boundaries(sizes: list[int]) -> None:
    signal = np.random.default_rng(1).integers(-32768, 32768, 200).astype("<i2")
    data, pieces = signal.tobytes(), []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    stream = Dribble(iter([piece for piece in [*pieces, data] if piece]))
    found = np.concatenate(list(read_pcm(stream, RATE)))
    assert found.dtype == np.float32
    assert np.array_equal(found * 32768, signal)


def test_raw_samples_are_yielded_immediately() -> None:
    read, write_to = os.pipe()
    with os.fdopen(read, "rb") as stream, os.fdopen(write_to, "wb") as source:
        blocks = read_pcm(stream, RATE)
        source.write(np.ones(100, "<i2").tobytes())
        source.flush()
        assert len(next(blocks)) == 100  # the writer is still open


def test_raw_block_size_is_bounded() -> None:
    sizes = [len(block) for block in read_pcm(io.BytesIO(bytes(2 * 16_000)), RATE, 0.25)]
    assert sizes == [4000] * 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no samples"),
        (b"\0", "ends within a sample"),
        (bytes(101), "ends within a sample"),
        (b"RIFF" + bytes(100), "is a RIFF file, expected raw 16-bit.*ffmpeg"),
        (b"fLaC" + bytes(100), "is a fLaC file"),
    ],
)
def test_invalid_raw_streams_are_one_line_errors(data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        list(read_pcm(io.BytesIO(data), RATE))
    assert "\n" not in str(refused.value)


def test_stream_of_one_sample_is_read() -> None:
    assert np.concatenate(list(read_pcm(io.BytesIO(b"\0\x40"), RATE))).tolist() == [0.5]
