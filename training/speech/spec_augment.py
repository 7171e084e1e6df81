"""SpecAugment (Park et al., arXiv:1904.08779): masks over bands and over time (thesis, section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SpecAugment:
    """How many masks a row gets, and how wide they are at most. Masked features are 0, the mean of a band."""

    band_masks: int = 2
    band_width: int = 27  # bands
    time_masks: int = 5
    time_share: float = 0.05  # of the row's frames

    def __call__(self, features: Tensor, frames: Tensor, random: torch.Generator) -> Tensor:
        """`features` [batch, frames, bands], `frames` int64 [batch], the real ones of each row -> the same, masked."""
        rows, size, bands = features.shape
        masked = torch.zeros(rows, size, bands, dtype=torch.bool)
        most = (frames.float() * self.time_share)[:, None]
        for axis, count, limit, length in (
            (2, self.band_masks, torch.full((rows, 1), float(self.band_width)), torch.full((rows, 1), float(bands))),
            (1, self.time_masks, most, frames.float()[:, None]),
        ):
            width = torch.rand(rows, count, generator=random) * limit
            start = torch.rand(rows, count, generator=random) * (length - width).clamp(min=0)
            places = torch.arange(features.shape[axis])
            inside = (places >= start[..., None].round()) & (places < (start + width)[..., None].round())
            shape = [rows, 1, 1]
            shape[axis] = features.shape[axis]
            masked |= inside.any(1).view(shape)
        return features.masked_fill(masked, 0.0)
