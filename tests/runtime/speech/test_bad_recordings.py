"""Damaged, truncated and invalid recordings give one-line errors."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sound_files import RATE, tone, write_sound

from intaglio.errors import UsageError
from intaglio.runtime.speech.audio_file import read_audio


def altered(change: Callable[[bytearray], bytes | bytearray]) -> Callable[[Path], Path]:
    """A maker of a WAV file whose bytes are changed."""

    def make(folder: Path) -> Path:
        path = write_sound(folder / "altered.wav", tone())
        path.write_bytes(change(bytearray(path.read_bytes())))
        return path

    return make


def cut(kind: str, subtype: str, part: float) -> Callable[[Path], Path]:
    """A maker of a truncated recording."""

    def make(folder: Path) -> Path:
        path = write_sound(folder / "cut", tone(3.0), subtype=subtype, kind=kind)
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * part)])
        return path

    return make


def with_sample(value: float, second: float, subtype: str = "FLOAT") -> Callable[[Path], Path]:
    """A maker of a stereo recording at 8 kHz with one wrong sample in its second channel."""

    def make(folder: Path) -> Path:
        samples = np.stack([tone(3.0, 8_000)] * 2, axis=1).astype(np.float64)
        samples[int(second * 8_000), 1] = value
        return write_sound(folder / "values.wav", samples, 8_000, subtype)

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
    path = write_sound(folder / "damaged.flac", noise, kind="FLAC")
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 2000] = bytes(2000)
    path.write_bytes(data)
    return path


def boastful_flac(folder: Path) -> Path:
    """Its STREAMINFO states 2**36 - 1 samples."""
    path = write_sound(folder / "boastful.flac", tone(3.0), kind="FLAC")
    data = bytearray(path.read_bytes())
    data[21] |= 0x0F
    data[22:26] = b"\xff" * 4
    path.write_bytes(data)
    return path


def open_files_below(folder: Path) -> list[str]:
    """The files of a folder that this process holds open; others' descriptors come and go beside them."""
    links = Path("/proc/self/fd").iterdir()
    return [target for target in map(_target, links) if target.startswith(f"{folder}/")]


def _target(descriptor: Path) -> str:
    with contextlib.suppress(FileNotFoundError):  # closed since it was listed
        return str(descriptor.readlink())
    return ""


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
    "no samples": (lambda folder: write_sound(folder / "zero.wav", np.zeros(0)), "has no samples"),
    "half a WAV": (cut("WAV", "PCM_16", 0.5), "truncated: states 96000 bytes of samples, and holds 47978"),
    "half an RF64": (cut("RF64", "PCM_16", 0.5), "truncated: states 96000 bytes of samples"),
    "a WAV that claims more": (put(40, struct.pack("<I", 1 << 30)), "truncated: states 1073741824 bytes of samples"),
    "a recorder that was killed": (put(40, bytes(4)), "damaged: states no samples, but 32000 bytes follow"),
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
def test_invalid_recording_is_a_one_line_error(tmp_path: Path, bad: str, capfd: pytest.CaptureFixture[str]) -> None:
    make, message = BAD[bad]
    path = make(tmp_path)
    with pytest.raises(UsageError, match=message) as refused:
        read_audio(path, RATE)
    assert "\n" not in str(refused.value) and str(refused.value).endswith((".", ".wav"))
    assert capfd.readouterr() == ("", "")
    assert not open_files_below(tmp_path)


@given(st.sampled_from(["WAV", "FLAC", "OGG"]), st.integers(0, 150), st.binary(min_size=1, max_size=8))
def test_mutated_header_is_readable_or_a_one_line_error(
    tmp_path_factory: pytest.TempPathFactory, kind: str, place: int, change: bytes
) -> None:
    path = tmp_path_factory.mktemp("changed") / "changed"
    data = bytearray(
        write_sound(path, tone(0.05), kind=kind, subtype="VORBIS" if kind == "OGG" else "PCM_16").read_bytes()
    )
    data[place : place + len(change)] = change
    path.write_bytes(data)
    try:
        found = read_audio(path, RATE, max_seconds=60)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert len(found) and np.isfinite(found).all()
