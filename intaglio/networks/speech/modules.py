"""The modules that Conformer and Squeezeformer are built of. Inputs and outputs are [batch, frames, width]."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn

from intaglio.networks.speech.configuration import SpeechConfig
from intaglio.networks.speech.constants import LONGEST_WAVE, REDUCTION_BEFORE, REDUCTION_KERNEL
from intaglio.networks.speech.front_end import valid

Number = TypeVar("Number", int, Tensor)


class Scaling(nn.Module):
    """A learned scale and bias of each channel, γ·x + β (thesis, section 5.2, figure 5.4)."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., width] -> the same shape."""
        return x * self.weight + self.bias


class FeedForward(nn.Module):
    """Linear, Swish, linear."""

    def __init__(self, config: SpeechConfig, bias: bool = True):
        super().__init__()
        width = config.hidden_size
        self.linear1 = nn.Linear(width, width * config.feed_forward_expansion, bias=bias)
        self.linear2 = nn.Linear(width * config.feed_forward_expansion, width, bias=bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [batch, frames, width] -> the same shape."""
        widened: Tensor = self.dropout(nn.functional.silu(self.linear1(x)))
        narrowed: Tensor = self.linear2(widened)
        return narrowed


class SelfAttention(nn.Module):
    """Multi-head attention over the row's own frames, without positions."""

    def __init__(self, config: SpeechConfig, bias: bool = True):
        super().__init__()
        width = config.hidden_size
        self.heads, self.head_dim = config.num_attention_heads, width // config.num_attention_heads
        self.dropout = config.attention_dropout
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=bias) for _ in range(4))

    def forward(self, x: Tensor, keep: Tensor, positions: Tensor | None) -> Tensor:
        """`x` [batch, frames, width], `keep` [batch, frames] True for real frames -> the same shape as `x`."""
        q, k, v = (self._heads(projection(x)) for projection in (self.q_proj, self.k_proj, self.v_proj))
        attended = self.attend(q * self.head_dim**-0.5, k, v, additive(keep, x.dtype), positions)
        joined: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return joined

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, positions: Tensor | None) -> Tensor:
        """Attention of scaled queries [batch, heads, frames, head_dim] with an additive mask [batch, 1, 1, frames]."""
        return nn.functional.scaled_dot_product_attention(q, k, v, mask, self._dropped, scale=1.0)

    @property
    def _dropped(self) -> float:
        return self.dropout if self.training else 0.0

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, self.head_dim).transpose(1, 2)


class RelativeAttention(SelfAttention):
    """Attention with relative positions (Dai et al., "Transformer-XL", arXiv:1901.02860, section 3.3).

    The score of query i and key j is (qᵢ + u)·kⱼ + (qᵢ + v)·r(i - j), with r a projection of the sines of i - j.
    """

    def __init__(self, config: SpeechConfig, bias: bool = True):
        super().__init__(config, bias)
        self.position_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.bias_u = nn.Parameter(torch.zeros(self.heads, 1, self.head_dim))
        self.bias_v = nn.Parameter(torch.zeros(self.heads, 1, self.head_dim))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, positions: Tensor | None) -> Tensor:
        """As `SelfAttention`; `positions` [1, 2 · frames + 1, width] from `relative_positions`."""
        assert positions is not None
        scale = self.head_dim**-0.5  # the queries are scaled; u and v are not
        r = self._heads(self.position_proj(positions))
        by_position = shifted((q + self.bias_v * scale) @ r.transpose(2, 3))
        return nn.functional.scaled_dot_product_attention(
            q + self.bias_u * scale, k, v, by_position + mask, self._dropped, scale=1.0
        )


def shifted(scores: Tensor) -> Tensor:
    """Scores by distance [..., frames, 2 · frames + 1] to scores by key [..., frames, frames], without a copy.

    Column c of row i is the distance frames - c. Key j is i - j away, in column frames - i + j; in the flattened rows
    that is (2 · i + 1) · frames + j, so that every other row of [..., 2 · frames + 1, frames] holds the keys.
    """
    frames = scores.shape[-2]
    return scores.reshape(*scores.shape[:-2], 2 * frames + 1, frames)[..., 1::2, :]


def relative_positions(frames: int, width: int, like: Tensor) -> Tensor:
    """Sines and cosines of the distances frames to -frames, [1, 2 · frames + 1, width] in the dtype of `like`."""
    distances = torch.arange(frames, -frames - 1, -1, device=like.device).float()
    rates = torch.exp(torch.arange(0, width, 2, device=like.device).float() * (-math.log(LONGEST_WAVE) / width))
    angles = distances[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[None].to(like.dtype)


def additive(keep: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask to add to scores, [batch, 1, 1, frames]: 0 for real frames, the lowest number for padding."""
    lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=keep.device)
    return torch.where(keep[:, None, None, :], torch.zeros((), dtype=dtype, device=keep.device), lowest)


def without_padding(x: Tensor, keep: Tensor) -> Tensor:
    """`x` with zeros where `keep`, broadcast to it, is False.

    A product: on a CPU, torch takes less than half the time that it takes to fill a copy.
    """
    return x * keep.to(x.dtype)


class Convolution(nn.Module):
    """Pointwise convolution to twice the width, activation, depthwise convolution over time, Swish, pointwise.

    `activation`: "glu" halves the width again (Conformer), "swish" and "none" keep it (thesis, table 5.4).
    """

    def __init__(self, config: SpeechConfig, activation: str, batch_norm: bool = True, bias: bool = True):
        super().__init__()
        width = config.hidden_size
        inner = width if activation == "glu" else 2 * width
        self.activation = activation
        self.pointwise1 = nn.Linear(width, 2 * width, bias=bias)
        kernel = config.conv_kernel_size
        self.depthwise = nn.Conv1d(inner, inner, kernel, padding=kernel // 2, groups=inner, bias=bias or not batch_norm)
        self.norm = nn.BatchNorm1d(inner) if batch_norm else nn.Identity()
        self.pointwise2 = nn.Linear(inner, width, bias=bias)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        """`x` [batch, frames, width], `keep` [batch, frames] True for real frames -> the same shape as `x`."""
        x = self.pointwise1(x)
        if self.activation == "glu":
            x = nn.functional.glu(x, dim=2)
        elif self.activation == "swish":
            x = nn.functional.silu(x)
        x = without_padding(x, keep[..., None])
        x = nn.functional.silu(self.norm(self._over_time(x))).transpose(1, 2)
        narrowed: Tensor = self.pointwise2(x)
        return narrowed

    def _over_time(self, x: Tensor) -> Tensor:
        """The depthwise convolution of `x` [batch, frames, inner] -> [batch, inner, frames].

        As one of an image of height 1 whose channels lie side by side, as they do in `x`: on a CPU, torch takes a tenth
        of the time that a convolution of one dimension takes.
        """
        convolution = self.depthwise
        image, weight = x.transpose(1, 2)[:, :, None], convolution.weight[:, :, None]
        weight = weight.contiguous(memory_format=torch.channels_last)
        padding = (0, convolution.kernel_size[0] // 2)
        return nn.functional.conv2d(image, weight, convolution.bias, padding=padding, groups=convolution.groups)[
            :, :, 0
        ]


class ImageSubsampling(nn.Module):
    """Convolutions of kernel 3 and stride 2 over time and bands with ReLU, then a linear layer over the bands left.

    With `separable`, all but the first are a depthwise and a pointwise convolution (thesis, section 5.2).
    """

    def __init__(self, config: SpeechConfig):
        super().__init__()
        width = config.hidden_size
        channels = config.subsampling.channels or width
        separable = config.subsampling.kind == "separable"
        bands = config.front_end.mels
        stages: list[nn.Module] = []
        for stage in range(int(math.log2(config.subsampling.factor))):
            inputs = channels if stage else 1
            if stage and separable:
                depthwise = nn.Conv2d(channels, channels, 3, stride=2, padding=1, groups=channels)
                stages.append(nn.ModuleList([depthwise, nn.Conv2d(channels, channels, 1)]))
            else:
                stages.append(nn.ModuleList([nn.Conv2d(inputs, channels, 3, stride=2, padding=1)]))
            bands = halved(bands)
        self.stages = nn.ModuleList(stages)
        self.linear = nn.Linear(channels * bands, width)

    def forward(self, features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """`features` [batch, frames, bands], `frames` int64 [batch] -> [batch, fewer frames, width], their number."""
        x = features[:, None]
        for index, stage in enumerate(self.stages):
            for convolution in stage.children():
                x = convolution(x)
            x, frames = nn.functional.relu(x), halved(frames)
            if index < len(self.stages) - 1:  # the blocks do not read padding; a convolution would
                x = without_padding(x, valid(frames, x.shape[2])[:, None, :, None])
        return self.linear(x.transpose(1, 2).flatten(2)), frames


class BandSubsampling(nn.Module):
    """One convolution of kernel 3 and stride 2 over time, with the bands as channels, and GELU."""

    def __init__(self, config: SpeechConfig):
        super().__init__()
        self.convolution = nn.Conv1d(config.front_end.mels, config.hidden_size, 3, stride=2, padding=1)

    def forward(self, features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """As `ImageSubsampling.forward`."""
        return nn.functional.gelu(self.convolution(features.transpose(1, 2))).transpose(1, 2), halved(frames)


def subsampling(config: SpeechConfig) -> nn.Module:
    """The subsampling that `config` describes."""
    return BandSubsampling(config) if config.subsampling.kind == "bands" else ImageSubsampling(config)


class TimeReduction(nn.Module):
    """Halves the frame rate: a depthwise convolution of kernel 5 and stride 2, and a pointwise one.

    Frame i of the result is of the frames 2·i - 3 to 2·i + 1, as in NVIDIA's implementation.
    """

    def __init__(self, width: int):
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, REDUCTION_KERNEL, stride=2, groups=width)
        self.pointwise = nn.Linear(width, width)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        """`x` [batch, frames, width], `keep` [batch, frames] -> [batch, (frames + 1) // 2, width]."""
        x = without_padding(x, keep[..., None]).transpose(1, 2)
        x = nn.functional.pad(x, (REDUCTION_BEFORE, REDUCTION_KERNEL - REDUCTION_BEFORE))
        x = self.depthwise(x)[:, :, : halved(keep.shape[1])]
        reduced: Tensor = self.pointwise(x.transpose(1, 2))
        return reduced


def halved(length: Number) -> Number:
    """The length after a convolution of stride 2 that keeps the first frame: half, rounded up."""
    return (length + 1) // 2
