"""Audio: recordings of speech."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Bundle
from intaglio.extras import load
from intaglio.files.hashes import sha256
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.modalities.modality import Feeds, Modality, RunOptions, Workload
from intaglio.runtime.speech.audio_file import AudioFile
from intaglio.runtime.speech.recognizer import (
    AUDIO,
    LENGTHS,
    LOG_PROBS,
    OUTPUT_LENGTHS,
    SpeechRecognizer,
    audio_of,
)
from intaglio.runtime.speech.recording_list import recordings_of
from intaglio.runtime.speech.recordings.run_recordings import Transcribed, TranscribedSegments, run_recordings
from intaglio.runtime.speech.whisper.log_mel import Features
from intaglio.runtime.speech.whisper_options import parts_of
from intaglio.runtime.speech.windows import MOST_FRAMES
from intaglio.runtime.text.inputs import InputsUsed, check_counts, load_inputs
from intaglio.samples.speech_samples import SAMPLE_RATE, recordings

LONGEST = 30.0  # seconds of a recording that is compared or observed, if they are not too many frames
SECONDS = 10  # of each recording that `bench` runs

Samples = npt.NDArray[np.float32]


def padded(samples: Sequence[Samples], shortest: int = 1) -> Feeds:
    """The inputs of one batch: recordings of different lengths, padded with zeros to at least `shortest` samples."""
    longest = max(shortest, *(len(each) for each in samples))
    audio = np.zeros((len(samples), longest), np.float32)
    for row, each in enumerate(samples):
        audio[row, : len(each)] = each
    return {AUDIO: audio, LENGTHS: np.array([len(each) for each in samples], np.int64)}


def load_recordings(
    bundle: Bundle, data: str | Path | None, samples: int, batch_size: int, option: str = "--data"
) -> tuple[list[Feeds], InputsUsed]:
    """Load batches of recordings, with their origin; see `LoadInputs`.

    `data` is a recording, a folder of recordings, a list of them (`recording_list`), an .npz file of arrays, or None
    for the recordings that ship with intaglio.
    """
    check_counts(samples, batch_size)
    if data is not None and Path(data).suffix == ".npz":
        return load_inputs(bundle, data, samples, batch_size, option)
    audio = audio_of(bundle)
    most = min(int(LONGEST * audio.sample_rate), MOST_FRAMES * audio.frame_samples)
    found = _recordings(data, audio.sample_rate, most, samples, option)
    shortest = bundle.manifest.axes["samples"].minimum if "samples" in bundle.manifest.axes else 1
    count = len(found.samples)
    feeds = [padded(found.samples[start : start + batch_size], shortest) for start in range(0, count, batch_size)]
    return feeds, InputsUsed(found.source, found.digest, count, found.available, len(feeds))


class _Recordings(NamedTuple):
    """The beginnings of recordings, their origin, its SHA-256, and how many there are."""

    samples: list[Samples]
    source: str
    digest: str
    available: int


def _recordings(data: str | Path | None, rate: int, most: int, count: int, option: str) -> _Recordings:
    """At most `most` samples at `rate` Hz of each of `count` recordings, of `data` or of those that ship."""
    if data is None:
        shipped = [resampled(recording.samples, SAMPLE_RATE, rate)[:most] for recording in recordings()]
        digest = hashlib.sha256(b"".join(each.tobytes() for each in shipped)).hexdigest()
        return _Recordings(shipped[:count], "the recordings that ship with intaglio", digest, len(shipped))
    paths = [recording.path for recording in recordings_of(Path(data), option)]
    digest = hashlib.sha256("\n".join(sha256(path) for path in paths).encode()).hexdigest()
    return _Recordings([_beginning(path, rate, most) for path in paths[:count]], str(data), digest, len(paths))


def _beginning(path: Path, sample_rate: int, most: int) -> Samples:
    """The first `most` samples of a recording."""
    blocks: list[Samples] = []
    with AudioFile(path, sample_rate) as file:
        for block in file.blocks():
            blocks.append(block)
            if sum(map(len, blocks)) >= most:
                break
    return np.concatenate(blocks)[:most]


def resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """`samples` at `rate` Hz as samples at `wanted` Hz."""
    if rate == wanted:
        return samples
    changed: Samples = load("soxr").resample(samples, rate, wanted)
    return changed


def _calibration(
    bundle: Bundle, data: str | Path | None, samples: int, batch_size: int, option: str = "--data"
) -> tuple[list[Feeds], InputsUsed]:
    """Each recording alone: inside the graph, frames of padding cannot be told from real ones by their shape.

    Of an encoder-decoder, the first window of each recording, as features for its encoder.
    """
    if bundle.manifest.transcriber is not None:
        return _windows(bundle, data, samples, option)
    return load_recordings(bundle, data, samples, 1, option)


def _windows(bundle: Bundle, data: str | Path | None, samples: int, option: str) -> tuple[list[Feeds], InputsUsed]:
    """The features of the beginnings of recordings, each a window of the encoder that reads them."""
    encoder, transcriber = parts_of(bundle)
    rate, length = transcriber.sample_rate, transcriber.frames * transcriber.hop
    found = _recordings(data, rate, length, samples, option)
    (given,) = encoder.inputs
    with open_engine(bundle, graph=transcriber.file, spinning=False) as engine:
        windows = [Features(engine, transcriber, [each]).window(0).astype(given.dtype) for each in found.samples]
    feeds = [{given.name: window} for window in windows]
    return feeds, InputsUsed(found.source, found.digest, len(feeds), found.available, len(feeds))


def _mask(feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> Array | None:
    lengths, log_probs = outputs.get(OUTPUT_LENGTHS), outputs.get(LOG_PROBS)
    if lengths is None or log_probs is None or log_probs.ndim != 3 or lengths.shape != log_probs.shape[:1]:
        return None
    kept: Array = np.arange(log_probs.shape[1]) < lengths.astype(np.int64)[:, None]
    return kept


def _run(bundle: Bundle, inputs: Iterable[str], options: RunOptions) -> Iterator[Transcribed | TranscribedSegments]:
    return run_recordings(bundle, inputs, options.target, options.speech, options.threads)


def _files(path: Path, option: str) -> list[Path]:
    return [recording.path for recording in recordings_of(path, option)]


def _open(bundle: Bundle, target: str) -> Callable[[Sequence[int]], object]:
    """Recordings of `SECONDS`, without decoding."""
    recognizer = SpeechRecognizer(bundle, target)
    rate = recognizer.sample_rate
    spoken = np.concatenate([resampled(each.samples, SAMPLE_RATE, rate) for each in recordings()])
    size = SECONDS * rate
    rows = [spoken[start : start + size] for start in range(0, len(spoken) - size, size // 4)]

    def run(numbers: Sequence[int]) -> object:
        batch = np.stack([rows[number % len(rows)] for number in numbers])
        return recognizer.log_probs(batch, np.full(len(batch), size, np.int64))

    return run


WORKLOAD = Workload("recogniser", "seconds of audio", SECONDS, _open)
RECORDINGS = Modality(load_recordings, _calibration, _mask, _run, _files, WORKLOAD)
