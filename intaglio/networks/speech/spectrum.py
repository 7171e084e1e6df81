"""The constants of the front end: the waves under its window, and the filters of its bands."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intaglio.networks.speech.configuration import FrontEnd

LINEAR = 200.0 / 3  # Hz per mel below `BREAK`; Slaney, "Auditory Toolbox" (1998)
BREAK = 1000.0  # Hz, where the scale becomes logarithmic
STEP = np.log(6.4) / 27.0  # of the frequency's logarithm per mel above `BREAK`


def waves(config: FrontEnd) -> npt.NDArray[np.float32]:
    """Cosines, then sines, of the frequencies of the spectrum under a Hann window, [fft_size + 2, 1, window].

    The Fourier transform is a convolution with them.
    """
    places = np.arange(config.window)
    period = config.window if config.periodic_window else config.window - 1
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * places / period)
    angles = 2 * np.pi / config.fft_size * np.arange(config.fft_size // 2 + 1)[:, None] * places
    return (np.concatenate([np.cos(angles), np.sin(angles)]) * hann).astype(np.float32)[:, None]


def mel_filters(sample_rate: int, fft_size: int, mels: int) -> npt.NDArray[np.float32]:
    """Triangular filters [mels, fft_size // 2 + 1] from 0 Hz to half the sample rate.

    Their corners are equally spaced on Slaney's mel scale; each has an area of 1 in Hz.
    """
    bins = np.linspace(0.0, sample_rate / 2, fft_size // 2 + 1)
    corners = _hertz(np.linspace(0.0, _mel(sample_rate / 2), mels + 2))
    widths = np.diff(corners)
    slopes = corners[:, None] - bins[None, :]
    rising = -slopes[:-2] / widths[:-1, None]
    falling = slopes[2:] / widths[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return (triangles * (2.0 / (corners[2:] - corners[:-2]))[:, None]).astype(np.float32)


def _mel(hertz: float) -> float:
    return hertz / LINEAR if hertz < BREAK else BREAK / LINEAR + float(np.log(hertz / BREAK) / STEP)


def _hertz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    knee = BREAK / LINEAR
    return np.where(mels < knee, mels * LINEAR, BREAK * np.exp(STEP * (mels - knee)))
