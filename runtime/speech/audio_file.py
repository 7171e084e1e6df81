"""Read recordings: checked blocks of mono samples at the model's rate, in bounded memory.

Truncated ones are found by their headers: libsndfile accepts truncated WAV and OGG files.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from intaglio import extras
from intaglio.closing import Closing
from intaglio.errors import UsageError, one_line

Samples = npt.NDArray[np.float32]  # [samples], mono, -1 to 1

RATES = (4_000, 384_000)  # Hz: below, speech cannot be understood; above, no recorder works
MAX_CHANNELS = 32
LOUDEST = 64.0  # of a sample; a file of floats may exceed 1 a little, one of integer values in floats exceeds this
UNKNOWN_FRAMES = 1 << 60  # libsndfile's frames of a file that does not state its length
BLOCK_SECONDS = 1.0
MAGIC = {b"RIFF", b"RF64", b"fLaC", b"OggS"}  # the first four bytes of each format that is read
MAX_CHUNKS = 1000  # of a WAV file; a recorder writes fewer than ten
STREAMED = 0x7FFF0000  # from here on the size of a WAV's data was written by a program to a pipe, and is unknown
OGG_PAGE = 27 + 255 + 255 * 255  # bytes of the largest page
END_OF_STREAM = 4  # flag of the last page


class AudioFile(Closing):
    """A recording as blocks of float32 mono samples at `sample_rate` Hz: open it with `with`, then read `blocks`.

    WAV (8 to 32 bits, float), FLAC and OGG (Vorbis, Opus). Channels are averaged; other rates are resampled (soxr, HQ)
    with the state kept between blocks, so that the memory does not grow with the recording.

    Raises `UsageError` for an unreadable or truncated recording, or one longer than `max_seconds`, which `option`
    names; when read also for NaN, infinite or far too loud samples, and for fewer samples than the header states. The
    messages call the file `name`, by default its path.
    """

    def __init__(
        self,
        path: str | Path,
        sample_rate: int,
        max_seconds: float | None = None,
        option: str = "--max-seconds",
        name: str | None = None,
    ):
        self.path = Path(path)
        self._name = name or str(path)
        self.sample_rate = sample_rate
        self._max_seconds = max_seconds
        self._option = option
        self._file: Any = None  # soundfile.SoundFile

    def __enter__(self) -> Self:
        self.open()
        return self

    def open(self) -> None:
        """Open and check it; `with` does. Raises `UsageError`, see the class."""
        soundfile = extras.load("soundfile")
        descriptor = self._open()
        try:
            self._file = soundfile.SoundFile(descriptor, closefd=True)  # closes it also if it raises
        except soundfile.SoundFileError as error:
            raise self._refused(f"not a readable recording ({one_line(error, 200)})", _CONVERT) from error
        self._file.seekable = lambda: False  # else it seeks after each block, which a FLAC without a length cannot
        try:
            self._check()
        except UsageError:
            self._file.close()
            raise

    def close(self) -> None:
        """Close it; `with` does."""
        self._file.close()

    @property
    def seconds(self) -> float | None:
        """The length that the header states; None if it states none."""
        return None if self._file.frames >= UNKNOWN_FRAMES else self._file.frames / self._file.samplerate

    def blocks(self, block_seconds: float = BLOCK_SECONDS) -> Iterator[Samples]:
        """Yield the samples in order, blocks of about `block_seconds`. To be called once."""
        mono = self._mono(max(1, int(block_seconds * self._file.samplerate)))
        if self._file.samplerate == self.sample_rate:
            yield from mono
            return
        stream = extras.load("soxr").ResampleStream(self._file.samplerate, self.sample_rate, 1, dtype="float32")
        for block in mono:
            if len(resampled := stream.resample_chunk(block)):
                yield resampled
        if len(rest := stream.resample_chunk(np.zeros(0, np.float32), last=True)):
            yield rest

    def _open(self) -> int:
        """Open the file, and check that it is one of the formats and complete."""
        if self.path.is_dir():
            raise self._refused("is a folder", "Give a WAV, FLAC or OGG file, or a folder of them with --input.")
        try:
            if self.path.exists() and not self.path.is_file():
                raise self._refused("is not a regular file", "Save the recording to a file first.")
            descriptor = os.open(self.path, os.O_RDONLY)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or one_line(error)
            raise self._refused(f"cannot be read ({reason})", "Give the path of a WAV, FLAC or OGG file.") from error
        try:
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                if file.seek(0, io.SEEK_END) == 0:
                    raise self._refused("is empty (0 bytes)", "Record or copy it again.")
                file.seek(0)
                if file.read(4) not in MAGIC:
                    raise self._refused("not a WAV, FLAC or OGG recording", _CONVERT)
                if reason := check_complete(file):
                    raise self._refused(reason, "Copy it again, or keep what is there: ffmpeg -i FILE OUT.wav")
            os.lseek(descriptor, 0, os.SEEK_SET)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _check(self) -> None:
        rate, channels, seconds = self._file.samplerate, self._file.channels, self.seconds
        if not RATES[0] <= rate <= RATES[1]:
            raise self._refused(f"{rate} samples per second, expected {RATES[0]} to {RATES[1]}", _CONVERT)
        if not 1 <= channels <= MAX_CHANNELS:
            raise self._refused(f"{channels} channels, expected 1 to {MAX_CHANNELS}", _CONVERT)
        if seconds == 0:
            raise self._refused("has no samples (0 seconds)", "Record it again.")
        if seconds is not None:
            self._check_length(seconds)

    def _check_length(self, seconds: float) -> None:
        if self._max_seconds is not None and seconds > self._max_seconds:
            raise self._refused(
                f"{seconds:.1f} seconds, expected at most {self._max_seconds:g}", f"Raise {self._option}, or split it."
            )

    def _mono(self, frames: int) -> Iterator[Samples]:
        """Yield checked blocks of `frames` samples at the file's own rate, averaged over the channels."""
        rate, read = self._file.samplerate, 0
        while len(block := self._read(frames, read)):
            self._check_values(block, read)
            read += len(block)
            self._check_length(read / rate)
            yield block[:, 0] if block.shape[1] == 1 else block.mean(axis=1, dtype=np.float32)
        if read == 0:
            raise self._refused("has no samples (0 seconds)", "Record it again.")
        if self.seconds is not None and read < self._file.frames:
            raise self._refused(
                f"its header states {self.seconds:.2f} seconds, but it holds {read / rate:.2f}", "Copy it again."
            )

    def _read(self, frames: int, before: int) -> npt.NDArray[np.float32]:
        """The next at most `frames` samples [samples, channels]; `before` have been read."""
        try:
            block: npt.NDArray[np.float32] = self._file.read(frames, dtype="float32", always_2d=True)
        except extras.load("soundfile").SoundFileError as error:
            after = f"damaged or truncated after {before / self._file.samplerate:.2f} seconds"
            raise self._refused(f"{after} ({one_line(error, 200)})", "Copy it again.") from error
        return block

    def _check_values(self, block: npt.NDArray[np.float32], before: int) -> None:
        allowed = np.abs(block) <= LOUDEST  # False for NaN
        if allowed.all():
            return
        row = int(np.flatnonzero(~allowed.all(axis=1))[0])
        at = f"at {(before + row) / self._file.samplerate:.3f} seconds"
        if not np.isfinite(block[row]).all():
            raise self._refused(f"NaN or infinite samples {at}", "Write it again with finite samples.")
        raise self._refused(
            f"a sample of {np.abs(block[row]).max():g} {at}, expected -1 to 1",
            "Scale it: divide 16-bit values by 32768.",
        )

    def _refused(self, reason: str, fix: str) -> UsageError:
        return UsageError(f"{self._name}: {reason}. {fix}")


_CONVERT = "Convert it: ffmpeg -i FILE -ac 1 -ar 16000 OUT.wav"


def read_audio(path: str | Path, sample_rate: int, max_seconds: float | None = None) -> Samples:
    """The whole recording as float32 mono samples at `sample_rate` Hz. Raises `UsageError`, see `AudioFile`."""
    with AudioFile(path, sample_rate, max_seconds) as file:
        return np.concatenate(list(file.blocks()))


def read_pcm(stream: BinaryIO, sample_rate: int, block_seconds: float = 0.1) -> Iterator[Samples]:
    """Yield the samples of a stream of raw 16-bit little-endian mono at `sample_rate` Hz, as they arrive.

    A block has at most `block_seconds`. Raises `UsageError` for a stream without samples, one that ends within a
    sample, and one that is a WAV, FLAC or OGG file.
    """
    size = 2 * max(1, int(block_seconds * sample_rate))
    read = getattr(stream, "read1", stream.read)  # read1 returns the available bytes instead of waiting for all
    rest, begun = b"", False
    while data := read(size):
        rest += data
        if not begun and len(rest) < 4:
            continue
        if not begun and rest[:4] in MAGIC:
            raise UsageError(f"the stream is a {rest[:4].decode()} file, expected {_RAW}")
        begun = True
        whole = len(rest) // 2 * 2
        yield np.frombuffer(rest[:whole], "<i2").astype(np.float32) / np.float32(32768)
        rest = rest[whole:]
    if not begun and len(rest) == 2:
        yield np.frombuffer(rest, "<i2").astype(np.float32) / np.float32(32768)
    elif not begun and not rest:
        raise UsageError(f"the stream has no samples, expected {_RAW}")
    elif rest:
        raise UsageError(f"the stream ends within a sample, expected {_RAW}")


_RAW = "raw 16-bit little-endian mono at the model's rate. Write it with: ffmpeg -i INPUT -ac 1 -ar RATE -f s16le -"


def check_complete(file: BinaryIO) -> str | None:
    """The evidence that the file is truncated, or None (a truncated FLAC file fails when decoded)."""
    file.seek(0)
    magic = file.read(4)
    size = file.seek(0, io.SEEK_END)
    if magic in (b"RIFF", b"RF64"):
        return _wav(file, size)
    return _ogg(file, size) if magic == b"OggS" else None


def _wav(file: BinaryIO, size: int) -> str | None:
    """Walk the chunks up to that of the samples, and compare its size with what is left of the file."""
    place, long_size = 12, None
    for _ in range(MAX_CHUNKS):
        file.seek(place)
        if len(header := file.read(8)) < 8:
            return "truncated: a WAV header without samples"
        name, length = struct.unpack("<4sI", header)
        if name == b"ds64" and len(sizes := file.read(16)) == 16:
            long_size = struct.unpack("<QQ", sizes)[1]
        if name == b"data":
            length = long_size if length == 0xFFFFFFFF and long_size is not None else length
            left = size - place - 8
            if length == 0 < left:  # as a recorder leaves it that was stopped hard
                return f"damaged: states no samples, but {left} bytes follow"
            known = long_size is not None or length < STREAMED
            return f"truncated: states {length} bytes of samples, and holds {left}" if known and length > left else None
        place += 8 + length + length % 2
    return f"not a readable recording (more than {MAX_CHUNKS} chunks before its samples)"


def _ogg(file: BinaryIO, size: int) -> str | None:
    """Look for the flag of the last page."""
    start = max(0, size - OGG_PAGE)
    file.seek(start)
    tail = file.read(OGG_PAGE)
    page = tail.rfind(b"OggS")
    if page < 0 or page + 27 > len(tail):
        return "truncated: ends within a page"
    segments = tail[page + 27 : page + 27 + tail[page + 26]]
    whole = len(segments) == tail[page + 26] and page + 27 + len(segments) + sum(segments) <= len(tail)
    return None if whole and tail[page + 5] & END_OF_STREAM else "truncated: its last page is missing"
