from __future__ import annotations

import pytest
import torch
from torch import Tensor

from intaglio.training.speech.spec_augment import SpecAugment

ROWS, FRAMES, BANDS = 64, 200, 80
LENGTHS = torch.arange(ROWS) * 3 + 8  # 8 to 197


def masked(augment: SpecAugment, seed: int = 0) -> Tensor:
    """Positions where features of 1 became 0, bool [rows, frames, bands]."""
    changed = augment(torch.ones(ROWS, FRAMES, BANDS), LENGTHS, torch.Generator().manual_seed(seed))
    assert set(changed.unique().tolist()) <= {0.0, 1.0}
    return changed == 0


def runs(row: Tensor) -> list[int]:
    """The lengths of the runs of True in a row."""
    text = "".join("x" if each else " " for each in row.tolist())
    return [len(run) for run in text.split()]


def test_frequency_masks_span_all_frames_within_the_maximum_width() -> None:
    found = masked(SpecAugment(band_masks=1, band_width=27, time_masks=0))
    assert (found == found[:, :1]).all()
    widths = [runs(row[0]) for row in found]
    assert all(len(each) <= 1 for each in widths)
    flat = [width for each in widths for width in each]
    assert max(flat) <= 27 and max(flat) > 20 and min(flat) < 6


def test_number_of_masks_equals_the_requested_one() -> None:
    found = masked(SpecAugment(band_masks=3, band_width=4, time_masks=0))
    counts = [len(runs(row[0])) for row in found]
    assert max(counts) == 3
    found = masked(SpecAugment(band_masks=0, time_masks=5, time_share=0.05))
    counts = [len(runs(row[:, 0])) for row in found]
    assert max(counts) == 5


def test_time_masks_stay_within_the_frames_of_their_row() -> None:
    found = masked(SpecAugment(band_masks=0, time_masks=5, time_share=0.3))
    assert (found == found[:, :, :1]).all()
    for row, length in zip(found, LENGTHS.tolist(), strict=True):
        assert not row[length:].any()
    single = masked(SpecAugment(band_masks=0, time_masks=1, time_share=0.3))
    shares = [
        sum(runs(row[:, 0])) / length for row, length in zip(single, LENGTHS.tolist(), strict=True) if length > 50
    ]
    assert max(shares) <= 0.3 + 1 / 50 and max(shares) > 0.25


def test_masks_depend_on_the_seed_and_differ_between_rows() -> None:
    augment = SpecAugment()
    assert torch.equal(masked(augment, 1), masked(augment, 1))
    assert not torch.equal(masked(augment, 1), masked(augment, 2))
    assert not torch.equal(masked(augment)[40, 0], masked(augment)[41, 0])


@pytest.mark.parametrize("augment", [SpecAugment(band_masks=0, time_masks=0), SpecAugment(time_share=0, band_width=0)])
def test_zero_masks_leave_the_features_unchanged(augment: SpecAugment) -> None:
    assert not masked(augment).any()
