"""Frames of an image, as the processors of SmolVLM and Idefics3 in `transformers` cut them on Pillow: equal pixels."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from intaglio.bundle.image_records import ImageEncoder
from intaglio.extras import load
from intaglio.runtime.vision.image_file import Pixels


class Grid(NamedTuple):
    """The frames of an image that is cut; 0 rows and columns: all of it is one frame."""

    rows: int
    columns: int

    @property
    def frames(self) -> int:
        """The frames, with the one that shows all of the image."""
        return self.rows * self.columns + 1


def grid_of(height: int, width: int, encoder: ImageEncoder) -> Grid:
    """The grid of an image of this size."""
    if not encoder.splits:
        return Grid(0, 0)
    height, width = _to_multiples(*_to_longest(height, width, encoder.longest_edge), encoder.side)
    rows, columns = height // encoder.side, width // encoder.side
    return Grid(0, 0) if rows == columns == 1 else Grid(rows, columns)


def frames_of(pixels: Pixels, encoder: ImageEncoder) -> Pixels:
    """The frames uint8 [frames, 3, side, side] of an image [height, width, 3]: its grid row by row, then all of it.

    The image is resized so that its longest side is `longest_edge`, then to multiples of `side`, and then to `side`.
    """
    library: Any = load("PIL.Image")
    resample = library.Resampling[encoder.resample.upper()]
    side, (height, width, _) = encoder.side, pixels.shape
    rows, columns = grid = grid_of(height, width, encoder)
    height, width = _to_longest(height, width, encoder.longest_edge)
    image = library.fromarray(pixels).resize((width, height), resample)
    if encoder.splits:
        height, width = _to_multiples(height, width, side)
        image = image.resize((width, height), resample)
    frames = np.empty((grid.frames, side, side, 3), np.uint8)
    if rows:
        cut = np.asarray(image).reshape(rows, side, columns, side, 3).transpose(0, 2, 1, 3, 4)
        frames[:-1] = cut.reshape(-1, side, side, 3)
    frames[-1] = np.asarray(image.resize((side, side), resample))
    return np.ascontiguousarray(frames.transpose(0, 3, 1, 2))


def _to_longest(height: int, width: int, longest: int) -> tuple[int, int]:
    """The size whose longest side is `longest`; the other one is rounded down, and then up to an even number."""
    ratio = width / height
    if width >= height:
        height, width = int(longest / ratio), longest
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    return max(height, 1), max(width, 1)


def _to_multiples(height: int, width: int, side: int) -> tuple[int, int]:
    """The size in whole frames, each side rounded up: first the longer one, and the other one after its ratio."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        height = math.ceil(int(width / ratio) / side) * side
    else:
        height = math.ceil(height / side) * side
        width = math.ceil(int(height * ratio) / side) * side
    return height, width


def image_text(grid: Grid, encoder: ImageEncoder) -> str:
    """The text of an image's frames, in which `encoder.token` stands `encoder.tokens` times for each."""
    tokens = encoder.token * encoder.tokens
    whole = f"{encoder.around}{encoder.whole}{tokens}{encoder.around}"
    if not grid.rows:
        return whole
    rows = (
        "".join(f"{encoder.around}<row_{row}_col_{column}>{tokens}" for column in range(1, grid.columns + 1))
        for row in range(1, grid.rows + 1)
    )
    return "".join(f"{row}\n" for row in rows) + f"\n{whole}"
