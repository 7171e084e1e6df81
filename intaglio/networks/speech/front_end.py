"""The front end as a torch module: a waveform to log-mel features, in operators that every runtime has."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from intaglio.networks.speech.configuration import FrontEnd
from intaglio.networks.speech.constants import DEVIATION_EPSILON
from intaglio.networks.speech.spectrum import mel_filters, waves


class LogMel(nn.Module):
    """Log-mel features, computed in float32 for any dtype of the network.

    The Fourier transform is a convolution with a Hann window times cosines and sines: runtimes without `STFT` have
    `Conv`, and only the `window` samples under the window are multiplied. Samples and frames of padding are zeroed
    wherever they could reach a real frame, so a row's features do not depend on the rows beside it. A network that was
    trained with other waves (computed in less precision, say) or filters has both in its checkpoint: `waves`
    [2 · bins, 1, window] and `filters` [mels, bins].
    """

    def __init__(self, config: FrontEnd):
        super().__init__()
        self.config = config
        filters = torch.from_numpy(mel_filters(config.sample_rate, config.fft_size, config.mels))
        stored = config.constants == "stored"
        self.register_buffer("waves", torch.from_numpy(waves(config)), persistent=stored)
        self.register_buffer("filters", filters, persistent=stored)

    def forward(self, audio: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """`audio` float32 [batch, samples], `lengths` int64 [batch] -> features [batch, frames, mels], frames."""
        config = self.config
        frames = lengths // config.hop + (1 if config.last_frame else 0)
        x = self._padded(self._emphasised(audio.float(), lengths), lengths)
        spectrum = nn.functional.conv1d(x[:, None], self.get_buffer("waves"), stride=config.hop)
        if not config.last_frame:
            spectrum = spectrum[:, :, : audio.shape[1] // config.hop]
        real, imaginary = spectrum.chunk(2, dim=1)
        power = (real * real + imaginary * imaginary).transpose(1, 2) @ self.get_buffer("filters").t()
        logs = (power + config.floor if config.guard == "add" else power.clamp(min=config.floor)).log()
        keep = valid(frames, logs.shape[1])[..., None]
        features = self._normalised(logs, keep, frames) if config.normalize else logs
        return features.masked_fill(~keep, 0.0), frames

    def _emphasised(self, audio: Tensor, lengths: Tensor) -> Tensor:
        keep = valid(lengths, audio.shape[1])
        if self.config.preemphasis:
            audio = torch.cat([audio[:, :1], audio[:, 1:] - self.config.preemphasis * audio[:, :-1]], dim=1)
        return audio.masked_fill(~keep, 0.0)

    def _padded(self, x: Tensor, lengths: Tensor) -> Tensor:
        """`x` [batch, samples] with half a window before and after each row's own samples."""
        half = self.config.window // 2
        if self.config.padding == "zeros":
            return nn.functional.pad(x, (half, half))
        index = (torch.arange(x.shape[1] + 2 * half) - half).abs()[None]  # mirrored at the first sample
        last = lengths[:, None] - 1
        mirrored = torch.where(index > last, 2 * last - index, index).clamp(min=0)
        return x.gather(1, mirrored)

    def _normalised(self, logs: Tensor, keep: Tensor, frames: Tensor) -> Tensor:
        count = frames[:, None, None].float()
        mean = logs.masked_fill(~keep, 0.0).sum(1, keepdim=True) / count.clamp(min=1.0)
        centred = (logs - mean).masked_fill(~keep, 0.0)
        variance = centred.square().sum(1, keepdim=True) / (count - 1.0).clamp(min=1.0)
        return centred / (variance.sqrt() + DEVIATION_EPSILON)


def valid(lengths: Tensor, size: int) -> Tensor:
    """bool [batch, size], True for the first `lengths` [batch] positions of each row."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]
