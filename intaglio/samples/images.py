"""Images made by a formula, to check an exported model on: shades, edges and texture."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]  # [height, width, 3], red, green and blue


def images(height: int, width: int, count: int) -> list[Pixels]:
    """`count` images of the same size, in a fixed order."""
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float64)
    rows, columns = rows / max(height, 2), columns / max(width, 2)
    found = []
    for number in range(count):
        random = np.random.default_rng(number)
        picture = np.empty((height, width, 3))
        for colour in range(3):
            waves = random.uniform(-12, 12, (4, 2))
            shades = sum(np.sin(rows * first + columns * second) for first, second in waves)
            picture[..., colour] = 128 + 28 * shades
        for _ in range(5):  # discs with sharp edges
            top, left, radius = random.uniform(0, 1, 3) * (1, 1, 0.3)
            picture[(rows - top) ** 2 + (columns - left) ** 2 < radius**2] = random.uniform(0, 255, 3)
        picture += random.normal(0, 6, picture.shape)
        found.append(np.clip(np.rint(picture), 0, 255).astype(np.uint8))
    return found
