"""Squeezeformer (thesis, chapter 5): attention, feed-forward, convolution, feed-forward, in a temporal U-Net."""

from __future__ import annotations

import math

from torch import Tensor, nn

from intaglio.networks.speech.configuration import SqueezeformerConfig
from intaglio.networks.speech.front_end import valid
from intaglio.networks.speech.modules import (
    Convolution,
    FeedForward,
    RelativeAttention,
    Scaling,
    TimeReduction,
    halved,
    relative_positions,
    subsampling,
)


class Residual(nn.Module):
    """A module with its residual connection and norm (thesis, figure 5.4).

    "scaled-post": LayerNorm(x + module(γ·x + β)); "post": the same without the learned scale; "pre":
    x + module(LayerNorm(x)).
    """

    def __init__(self, config: SqueezeformerConfig, module: nn.Module):
        super().__init__()
        width = config.hidden_size
        self.before = config.normalization == "pre"
        self.norm = nn.LayerNorm(width)
        self.scaling = Scaling(width) if config.normalization == "scaled-post" else nn.Identity()
        self.module = module
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, *context: Tensor) -> Tensor:
        """`x` [batch, frames, width] and the module's other inputs -> the same shape as `x`."""
        if self.before:
            added: Tensor = x + self.dropout(self.module(self.norm(x), *context))
            return added
        normalised: Tensor = self.norm(x + self.dropout(self.module(self.scaling(x), *context)))
        return normalised


class SqueezeformerBlock(nn.Module):
    """Attention, feed-forward, convolution, feed-forward (thesis, figure 5.2, right)."""

    def __init__(self, config: SqueezeformerConfig):
        super().__init__()
        self.attention = Residual(config, RelativeAttention(config))
        self.feed_forward1 = Residual(config, FeedForward(config))
        self.convolution = Residual(config, Convolution(config, config.convolution_activation))
        self.feed_forward2 = Residual(config, FeedForward(config))

    def forward(self, x: Tensor, keep: Tensor, positions: Tensor) -> Tensor:
        """`x` [batch, frames, width], `keep` [batch, frames] True for real frames -> the same shape as `x`."""
        x = self.feed_forward1(self.attention(x, keep, positions))
        convolved: Tensor = self.feed_forward2(self.convolution(x, keep))
        return convolved


class SqueezeformerEncoder(nn.Module):
    """Subsampling, and the blocks in the temporal U-Net: half the frame rate from one block to the last."""

    def __init__(self, config: SqueezeformerConfig):
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.reduce_at, self.recover_at = config.time_reduced
        self.subsampling = subsampling(config)
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(SqueezeformerBlock(config) for _ in range(config.num_hidden_layers))
        if self.reduce_at is not None:
            self.time_reduction = TimeReduction(width)
        if self.recover_at is not None:
            self.time_recovery = nn.Linear(width, width)

    def forward(self, features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """`features` [batch, frames, mels], `frames` int64 [batch] -> states [batch, fewer, width], their number."""
        config = self.config
        x, frames = self.subsampling(features, frames)
        x = self.norm(self.dropout(x * math.sqrt(config.hidden_size) if config.scale_input else x))
        keep, positions = valid(frames, x.shape[1]), relative_positions(x.shape[1], config.hidden_size, x)
        whole, full_keep, full_positions, full_frames = x, keep, positions, frames
        for index, layer in enumerate(self.layers):
            if index == self.reduce_at:
                whole = x
                x, frames = self.time_reduction(x, keep), halved(frames)
                keep, positions = valid(frames, x.shape[1]), relative_positions(x.shape[1], config.hidden_size, x)
            if index == self.recover_at:
                recovered = x.repeat_interleave(2, dim=1)[:, : whole.shape[1]]
                x = self.time_recovery(recovered)
                x = whole + x if config.skip_connection else x
                keep, positions, frames = full_keep, full_positions, full_frames
            x = layer(x, keep, positions)
        return x, frames
