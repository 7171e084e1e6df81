"""Speech as it sounds elsewhere: another speed, a room, noise, another level. Reproducible: the caller seeds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intaglio import extras
from intaglio.samples.speech_samples import SAMPLE_RATE

Samples = npt.NDArray[np.float32]  # [samples], -1 to 1, 16 kHz
Span = tuple[float, float]  # the least and the most

TALKERS = (3, 6)  # who babble at the same time
SMALLEST = 1e-12  # a power: silence has no signal-to-noise ratio
GAP = 0.002  # seconds between the direct sound and the first echo
REVERBERANT = (0.05, 0.5)  # power of all echoes, the direct sound's being 1


@dataclass(frozen=True)
class Mixing:
    """How utterances are changed; each value is drawn evenly from its span."""

    speed: Span = (0.9, 1.1)  # also shifts the pitch
    silence: Span = (0.0, 0.25)  # seconds, before and after
    room_share: float = 0.3  # of the utterances
    room: Span = (0.1, 0.5)  # seconds until an echo is 60 dB down
    noise_share: float = 0.6  # of the utterances
    noise: Span = (5.0, 30.0)  # signal-to-noise ratio, dB
    gain: Span = (-12.0, 6.0)  # dB


def mix(audio: Samples, random: np.random.Generator, mixing: Mixing, others: Sequence[Samples] = ()) -> Samples:
    """`audio` changed as `mixing` says, float32 [samples], -1 to 1; beyond, it is clipped.

    `others`: utterances to make babble of; without any, noise is white or pink.
    """
    audio = change_speed(audio, random.uniform(*mixing.speed))
    before, after = (round(random.uniform(*mixing.silence) * SAMPLE_RATE) for _ in range(2))
    audio = np.pad(audio, (before, after))
    if random.random() < mixing.room_share:
        audio = in_room(audio, random.uniform(*mixing.room), random)
    if random.random() < mixing.noise_share:
        kind = int(random.integers(3 if others else 2))
        noise = babble(others, len(audio), random) if kind == 2 else (white, pink)[kind](len(audio), random)
        audio = add_noise(audio, noise, random.uniform(*mixing.noise))
    louder: Samples = audio * np.float32(10 ** (random.uniform(*mixing.gain) / 20))
    return louder.clip(-1, 1)


def change_speed(audio: Samples, speed: float) -> Samples:
    """`audio` played `speed` times as fast, resampled: 1.1 makes it shorter and higher."""
    changed: Samples = extras.load("soxr").resample(audio, SAMPLE_RATE * speed, SAMPLE_RATE, quality="MQ")
    return changed


def white(samples: int, random: np.random.Generator) -> Samples:
    """Noise of the same power at every frequency."""
    return random.standard_normal(samples, np.float32)


def pink(samples: int, random: np.random.Generator) -> Samples:
    """Noise whose power falls as 1 / frequency, as that of many rooms and machines does."""
    spectrum = np.fft.rfft(white(samples, random))
    spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 1))
    return np.fft.irfft(spectrum, samples).astype(np.float32)


def babble(others: Sequence[Samples], samples: int, random: np.random.Generator) -> Samples:
    """Several of `others` at the same time, each repeated from a random place and equally loud."""
    total = np.zeros(samples, np.float32)
    for _ in range(random.integers(*TALKERS, endpoint=True)):
        other = others[int(random.integers(len(others)))]
        turned = np.roll(other, random.integers(len(other)))
        total += np.resize(turned, samples) / np.sqrt(max(_power(other), SMALLEST))
    return total


def add_noise(audio: Samples, noise: Samples, decibels: float) -> Samples:
    """`audio` and `noise` [samples each], so that the mean power of the audio is `decibels` above that of the noise."""
    wanted = _power(audio) / 10 ** (decibels / 10)
    return audio + noise * np.float32(np.sqrt(wanted / max(_power(noise), SMALLEST)))


def in_room(audio: Samples, seconds: float, random: np.random.Generator) -> Samples:
    """`audio` with the echo of a room, which is 60 dB down after `seconds`; as long and as loud as before.

    The response is the direct sound followed by noise that decays exponentially (Polack's model).
    """
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    response = random.standard_normal(len(time)) * 10 ** (-3 * time / seconds)
    response[: round(GAP * SAMPLE_RATE)] = 0
    response *= np.sqrt(random.uniform(*REVERBERANT) / np.sum(response**2))
    response[0] = 1
    length = len(audio) + len(response) - 1
    size = 2 ** int(np.ceil(np.log2(length)))
    echoed = np.fft.irfft(np.fft.rfft(audio, size) * np.fft.rfft(response, size), size)[: len(audio)]
    loudness = np.sqrt(_power(audio) / max(_power(echoed), SMALLEST))
    return np.asarray(echoed * loudness, np.float32)


def _power(audio: npt.NDArray[np.floating]) -> float:
    return float(np.mean(np.square(audio, dtype=np.float64))) if len(audio) else 0.0
