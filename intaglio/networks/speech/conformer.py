"""Conformer (Gulati et al., arXiv:2005.08100): feed-forward, attention, convolution, feed-forward, with pre-norms."""

from __future__ import annotations

import math

from torch import Tensor, nn

from intaglio.networks.speech.configuration import ConformerConfig
from intaglio.networks.speech.front_end import valid
from intaglio.networks.speech.modules import (
    Convolution,
    FeedForward,
    RelativeAttention,
    SelfAttention,
    relative_positions,
    subsampling,
)


class ConformerBlock(nn.Module):
    """One block (arXiv:2005.08100, equation 1): half-step feed-forwards around attention and convolution."""

    def __init__(self, config: ConformerConfig):
        super().__init__()
        width, bias = config.hidden_size, config.bias
        self.norm_feed_forward1, self.norm_attention, self.norm_convolution, self.norm_feed_forward2, self.norm_out = (
            nn.LayerNorm(width) for _ in range(5)
        )
        self.feed_forward1, self.feed_forward2 = FeedForward(config, bias), FeedForward(config, bias)
        attention = RelativeAttention if config.relative_positions else SelfAttention
        self.attention = attention(config, bias)
        self.convolution = Convolution(config, "glu", config.batch_norm, bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, keep: Tensor, positions: Tensor | None) -> Tensor:
        """`x` [batch, frames, width], `keep` [batch, frames] True for real frames -> the same shape as `x`."""
        x = x + 0.5 * self.dropout(self.feed_forward1(self.norm_feed_forward1(x)))
        x = x + self.dropout(self.attention(self.norm_attention(x), keep, positions))
        x = x + self.dropout(self.convolution(self.norm_convolution(x), keep))
        x = x + 0.5 * self.dropout(self.feed_forward2(self.norm_feed_forward2(x)))
        normalised: Tensor = self.norm_out(x)
        return normalised


class ConformerEncoder(nn.Module):
    """Subsampling and the blocks."""

    def __init__(self, config: ConformerConfig):
        super().__init__()
        self.config = config
        self.subsampling = subsampling(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(ConformerBlock(config) for _ in range(config.num_hidden_layers))

    def forward(self, features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """`features` [batch, frames, mels], `frames` int64 [batch] -> states [batch, fewer, width], their number."""
        config = self.config
        x, frames = self.subsampling(features, frames)
        x = self.dropout(x * math.sqrt(config.hidden_size) if config.scale_input else x)
        keep = valid(frames, x.shape[1])
        positions = relative_positions(x.shape[1], config.hidden_size, x) if config.relative_positions else None
        for layer in self.layers:
            x = layer(x, keep, positions)
        return x, frames
