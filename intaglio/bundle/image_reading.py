"""Reject what an untrusted manifest says of images, where it is invalid."""

from __future__ import annotations

from pathlib import Path

from intaglio.bundle.image_records import (
    EMBEDDINGS,
    FILTERS,
    PIXELS,
    RESAMPLING,
    Image,
    ImageEncoder,
    TextTower,
)
from intaglio.bundle.manifest import MODEL, Decoder, TensorSpec
from intaglio.bundle.manifest_reading import check_name, check_number, damaged

LARGEST_SIDE = 1 << 13  # of an image that a model reads, in pixels
LONGEST_TEXT = 1 << 16  # tokens that texts are padded to


def verify_image(path: Path, image: Image) -> None:
    """Reject invalid sizes of images, and an unknown filter."""
    for name, value in (("height", image.height), ("width", image.width)):
        check_number(path, f"image's {name}", value, 1, LARGEST_SIDE)
    check_name(path, "image's resample", image.resample, RESAMPLING)


def verify_text(path: Path, text: TextTower) -> None:
    """Reject an invalid length of texts, and a file that is the graph for images."""
    if not 0 <= text.padded_to <= LONGEST_TEXT or text.file == MODEL:
        padded = f"texts are padded to {text.padded_to} tokens by {text.file[:80]}"
        raise damaged(path, f"{padded}, expected 0 to {LONGEST_TEXT} and another file than {MODEL}")


def verify_image_encoder(path: Path, encoder: ImageEncoder | None, decoder: Decoder | None) -> None:
    """Reject an image encoder without its decoder, or the reverse, and one whose numbers contradict its graph."""
    width = 0 if decoder is None else decoder.image_width
    if (encoder is None) != (width == 0):
        has = f"the bundle has {'no' if encoder is None else 'an'} image encoder"
        raise damaged(path, f"its decoder reads image embeddings of width {width}, and {has}")
    if encoder is None or decoder is None:
        return
    for name in ("side", "longest_edge"):
        check_number(path, f"image encoder's {name}", getattr(encoder, name), 1, LARGEST_SIDE)
    check_number(path, "image encoder's tokens", encoder.tokens, 1, LONGEST_TEXT)
    check_number(path, "image encoder's token_id", encoder.token_id, 0, decoder.vocab_size - 1)
    check_name(path, "image encoder's resample", encoder.resample, FILTERS)
    expected = (
        [TensorSpec(PIXELS, "uint8", ("batch", 3, encoder.side, encoder.side))],
        [TensorSpec(EMBEDDINGS, "float32", ("batch", encoder.tokens, width))],
    )
    if encoder.file == MODEL or not encoder.token or (list(encoder.inputs), list(encoder.outputs)) != expected:
        made = f"{encoder.tokens} embeddings of width {width} from frames of {encoder.side} pixels"
        raise damaged(path, f"the image encoder {encoder.file[:80]} does not make {made}")
