"""What stands in a prompt for an image: the markers and tokens of its frames."""

from __future__ import annotations

from intaglio.bundle.bundle import ImageEncoder
from intaglio.runtime.vision.frames import Grid


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
