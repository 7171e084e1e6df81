"""Recordings: every format and rate gives the same signal, and bad ones get one line."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from intaglio.errors import UsageError
from intaglio.runtime.speech.audio_file import AudioFile, Samples, read_audio, read_pcm

RATE = 16_000


def tone(seconds: float = 1.0, rate: int = RATE, frequency: float = 440.0) -> Samples:
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def write(path: Path, samples: np.ndarray, rate: int = RATE, subtype: str = "PCM_16", kind: str = "WAV") -> Path:
    soundfile.write(path, samples, rate, subtype=subtype, format=kind)
    return path


@pytest.mark.parametrize(
    ("kind", "subtype", "error"),
    [
        ("WAV", "PCM_U8", 1 / 128),
        ("WAV", "PCM_16", 1 / 32768),
        ("WAV", "PCM_24", 1e-6),
        ("WAV", "PCM_32", 1e-6),
        ("WAV", "FLOAT", 0),
        ("WAV", "DOUBLE", 0),
        ("WAVEX", "PCM_16", 1 / 32768),
        ("RF64", "PCM_16", 1 / 32768),
        ("FLAC", "PCM_16", 1 / 32768),
        ("OGG", "VORBIS", 0.05),
        ("OGG", "OPUS", 0.05),
    ],
)
def test_every_format_gives_the_signal(tmp_path: Path, kind: str, subtype: str, error: float) -> None:
    signal = tone()
    found = read_audio(write(tmp_path / "recording", signal, subtype=subtype, kind=kind), RATE)
    assert found.dtype == np.float32 and found.shape == signal.shape
    assert np.abs(found - signal)[:-400].max() <= error  # Opus fades out


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
def test_another_rate_is_resampled_without_seams_between_blocks(tmp_path: Path, rate: int) -> None:
    path = write(tmp_path / "recording.wav", tone(3.0, rate), rate, "FLOAT")
    found = read_audio(path, RATE)
    assert len(found) == 3 * RATE
    assert np.abs(found - tone(3.0))[200:-200].max() < 2e-3
    for block_seconds in (0.01, 0.37, 100.0):
        with AudioFile(path, RATE) as file:
            assert np.array_equal(np.concatenate(list(file.blocks(block_seconds))), found)


def test_stereo_is_averaged(tmp_path: Path) -> None:
    left, right = tone(), tone(frequency=600.0)
    path = write(tmp_path / "stereo.wav", np.stack([left, right], axis=1), subtype="FLOAT")
    assert np.allclose(read_audio(path, RATE), (left + right) / 2, atol=1e-7)


def test_the_length_is_known_before_reading(tmp_path: Path) -> None:
    with AudioFile(write(tmp_path / "recording.wav", tone(2.5, 44_100), 44_100), RATE) as file:
        assert file.seconds == pytest.approx(2.5)


def test_a_long_recording_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """10 minutes of stereo at 48 kHz are 220 MB as floats."""
    path = write(tmp_path / "long.flac", np.zeros((600 * 48_000, 2), np.int16), 48_000, kind="FLAC")
    tracemalloc.start()
    with AudioFile(path, RATE) as file:
        seconds = sum(len(block) for block in file.blocks()) / RATE
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds == 600
    assert peak < 4 << 20


def test_a_wav_written_to_a_pipe_has_no_length_and_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "piped.wav", tone())
    data = bytearray(path.read_bytes())
    data[4:8] = data[40:44] = b"\xff" * 4
    path.write_bytes(data)
    assert len(read_audio(path, RATE)) == RATE


def test_other_chunks_before_the_samples_are_passed_over(tmp_path: Path) -> None:
    """One of odd length is followed by a zero."""
    path = write(tmp_path / "chunks.wav", tone())
    data = path.read_bytes()
    path.write_bytes(data[:36] + b"note" + struct.pack("<I", 3) + b"abc\0" + data[36:])
    assert len(read_audio(path, RATE)) == RATE
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UsageError, match="truncated: states 32000 bytes of samples, and holds 31990"):
        read_audio(path, RATE)


def altered(change: Callable[[bytearray], bytes | bytearray]) -> Callable[[Path], Path]:
    """A maker of a WAV file whose bytes are changed."""

    def make(folder: Path) -> Path:
        path = write(folder / "altered.wav", tone())
        path.write_bytes(change(bytearray(path.read_bytes())))
        return path

    return make


def cut(kind: str, subtype: str, part: float) -> Callable[[Path], Path]:
    """A maker of a recording of which only the first part is there."""

    def make(folder: Path) -> Path:
        path = write(folder / "cut", tone(3.0), subtype=subtype, kind=kind)
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * part)])
        return path

    return make


def with_sample(value: float, second: float, subtype: str = "FLOAT") -> Callable[[Path], Path]:
    """A maker of a stereo recording at 8 kHz with one wrong sample in its second channel."""

    def make(folder: Path) -> Path:
        samples = np.stack([tone(3.0, 8_000)] * 2, axis=1).astype(np.float64)
        samples[int(second * 8_000), 1] = value
        return write(folder / "values.wav", samples, 8_000, subtype)

    return make


def folder_of(folder: Path) -> Path:
    return folder


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def forbidden(folder: Path) -> Path:
    path = folder / "loop.wav"
    path.symlink_to(path)
    return path


def text(content: bytes, name: str = "notes.wav") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def put(position: int, value: bytes) -> Callable[[Path], Path]:
    return altered(lambda data: data[:position] + value + data[position + len(value) :])


def damaged_flac(folder: Path) -> Path:
    noise = np.random.default_rng(0).normal(size=3 * RATE) * 0.1
    path = write(folder / "damaged.flac", noise, kind="FLAC")
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 2000] = bytes(2000)
    path.write_bytes(data)
    return path


def boastful_flac(folder: Path) -> Path:
    """Its STREAMINFO states 2**36 - 1 samples."""
    path = write(folder / "boastful.flac", tone(3.0), kind="FLAC")
    data = bytearray(path.read_bytes())
    data[21] |= 0x0F
    data[22:26] = b"\xff" * 4
    path.write_bytes(data)
    return path


MANY_CHANNELS = struct.pack("<HHIIHH", 1, 33, RATE, RATE * 66, 66, 16)
BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "none": (lambda folder: folder / "none.wav", "cannot be read .No such file"),
    "a name that is none": (lambda folder: folder / "a\0b.wav", "cannot be read .embedded null byte"),
    "a link to itself": (forbidden, "cannot be read .Too many levels"),
    "a folder": (folder_of, "is a folder"),
    "a pipe": (pipe, "is not a regular file"),
    "empty": (text(b""), "is empty .0 bytes"),
    "text": (text(b"hello, this is text"), "not a WAV, FLAC or OGG recording.*ffmpeg"),
    "MP3": (text(b"ID3\x04" + bytes(100), "song.mp3"), "not a WAV, FLAC or OGG recording.*ffmpeg"),
    "raw": (text(bytes(100), "samples.raw"), "not a WAV, FLAC or OGG recording.*ffmpeg"),
    "four bytes of a WAV": (text(b"RIFF"), "truncated: a WAV header without samples"),
    "a RIFF that is no WAV": (
        text(b"RIFF\x24\0\0\0AVI LIST" + bytes(4) + b"data" + bytes(4)),
        "not a readable recording",
    ),
    "endless chunks": (text(b"RIFF\xff\xff\xff\x7fWAVE" + (b"junk" + bytes(4)) * 2000), "more than 1000 chunks"),
    "no samples": (lambda folder: write(folder / "zero.wav", np.zeros(0)), "has no samples"),
    "half a WAV": (cut("WAV", "PCM_16", 0.5), "truncated: states 96000 bytes of samples, and holds 47978"),
    "half an RF64": (cut("RF64", "PCM_16", 0.5), "truncated: states 96000 bytes of samples"),
    "a WAV that claims more": (put(40, struct.pack("<I", 1 << 30)), "truncated: states 1073741824 bytes of samples"),
    "half a FLAC": (cut("FLAC", "PCM_16", 0.5), "damaged or truncated after"),
    "half an OGG": (cut("OGG", "VORBIS", 0.5), "truncated: its last page is missing"),
    "half an Opus": (cut("OGG", "OPUS", 0.5), "truncated: its last page is missing"),
    "the first page of an OGG": (cut("OGG", "VORBIS", 0.002), "truncated"),
    "a damaged FLAC": (damaged_flac, "damaged or truncated after"),
    "a FLAC that claims more": (boastful_flac, "seconds, but it holds 3.00"),
    "NaN": (with_sample(np.nan, 2.25), "NaN or infinite samples at 2.250 seconds"),
    "infinite": (with_sample(-np.inf, 0.5), "NaN or infinite samples at 0.500 seconds"),
    "infinite as float32": (with_sample(1e300, 1.75, "DOUBLE"), "NaN or infinite samples at 1.750 seconds"),
    "integers as floats": (
        with_sample(-20_000.0, 1.5),
        "a sample of 20000 at 1.500 seconds, expected -1 to 1. Scale it",
    ),
    "no rate": (put(24, struct.pack("<I", 0)), "samples per second|not a readable recording"),
    "a low rate": (put(24, struct.pack("<I", 100)), "100 samples per second, expected 4000 to 384000"),
    "a high rate": (put(24, struct.pack("<I", 2_000_000_000)), "2000000000 samples per second"),
    "many channels": (put(20, MANY_CHANNELS), "33 channels, expected 1 to 32"),
    "no channels": (put(22, b"\0\0"), "channels|not a readable recording"),
    "an unknown encoding": (put(20, b"\x77\x77"), "not a readable recording"),
    "a format chunk of nothing": (put(16, bytes(4)), "truncated|not a readable recording"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_recording_gets_one_line(tmp_path: Path, bad: str, capfd: pytest.CaptureFixture[str]) -> None:
    make, message = BAD[bad]
    path = make(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(UsageError, match=message) as refused:
        read_audio(path, RATE)
    assert "\n" not in str(refused.value) and str(refused.value).endswith((".", ".wav"))
    assert capfd.readouterr() == ("", "")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@given(st.sampled_from(["WAV", "FLAC", "OGG"]), st.integers(0, 150), st.binary(min_size=1, max_size=8))
def test_any_change_of_a_header_is_a_recording_or_gets_one_line(
    tmp_path_factory: pytest.TempPathFactory, kind: str, place: int, change: bytes
) -> None:
    path = tmp_path_factory.mktemp("changed") / "changed"
    data = bytearray(write(path, tone(0.05), kind=kind, subtype="VORBIS" if kind == "OGG" else "PCM_16").read_bytes())
    data[place : place + len(change)] = change
    path.write_bytes(data)
    try:
        found = read_audio(path, RATE, max_seconds=60)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert len(found) and np.isfinite(found).all()


def test_a_recording_longer_than_allowed_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "long.wav", tone(3.0))
    assert len(read_audio(path, RATE, max_seconds=3)) == 3 * RATE
    with (
        pytest.raises(UsageError, match=r"3.0 seconds, expected at most 2. Raise --max-seconds, or split it"),
        AudioFile(path, RATE, max_seconds=2),
    ):
        pass


def test_a_recording_without_a_stated_length_is_stopped_when_it_gets_too_long(tmp_path: Path) -> None:
    path = write(tmp_path / "piped.flac", tone(5.0), kind="FLAC")
    data = bytearray(path.read_bytes())
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    path.write_bytes(data)
    assert len(read_audio(path, RATE)) == 5 * RATE
    with AudioFile(path, RATE, max_seconds=2, option="--limit") as file:
        assert file.seconds is None
        with pytest.raises(UsageError, match=r"expected at most 2. Raise --limit"):
            list(file.blocks())


class Dribble(io.RawIOBase):
    """A stream that gives a few bytes at a time, as a microphone does."""

    def __init__(self, pieces: Iterator[bytes]):
        self.pieces = pieces

    def read(self, size: int = -1) -> bytes:
        return next(self.pieces, b"")


@given(st.lists(st.integers(1, 50), max_size=20))
def test_raw_samples_are_the_same_however_they_arrive(sizes: list[int]) -> None:
    signal = np.random.default_rng(1).integers(-32768, 32768, 200).astype("<i2")
    data, pieces = signal.tobytes(), []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    stream = Dribble(iter([piece for piece in [*pieces, data] if piece]))
    found = np.concatenate(list(read_pcm(stream, RATE)))
    assert found.dtype == np.float32
    assert np.array_equal(found * 32768, signal)


def test_raw_samples_are_yielded_when_they_are_there(tmp_path: Path) -> None:
    read, write_to = os.pipe()
    with os.fdopen(read, "rb") as stream, os.fdopen(write_to, "wb") as source:
        blocks = read_pcm(stream, RATE)
        source.write(np.ones(100, "<i2").tobytes())
        source.flush()
        assert len(next(blocks)) == 100  # the writer is still open


def test_blocks_of_raw_samples_have_a_bound() -> None:
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
def test_what_is_no_raw_stream_gets_one_line(data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        list(read_pcm(io.BytesIO(data), RATE))
    assert "\n" not in str(refused.value)


def test_a_stream_of_one_sample_is_read() -> None:
    assert np.concatenate(list(read_pcm(io.BytesIO(b"\0\x40"), RATE))).tolist() == [0.5]
