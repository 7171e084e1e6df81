"""Check a decoder that reads images against the source model, in a separate process; see `reference.check`.

The source model reads images and text of one prompt in one pass, with its library's image processor. The graphs read
them as a bundle does: frames cut by our own code, encoded, and placed in a prompt that is prefilled in two steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import MODEL, Decoder, ImageEncoder
from intaglio.bundle.image_records import EMBEDDINGS, PIXELS
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.decoders.reference import source_model
from intaglio.exporters.reference.check import Checked, Floats, answer, check_sequences, open_checked
from intaglio.exporters.reference.source_model import check_finite, source_errors
from intaglio.exporters.vision.image_processor import library_processor
from intaglio.extras import load
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.image_table import with_ids
from intaglio.runtime.text.tokenizer import TOKENIZER, Tokenizer
from intaglio.runtime.vision.frames import frames_of, grid_of, image_text
from intaglio.samples.images import images
from intaglio.samples.sentences import sentences

LOGITS = "logits_with_images"
COMPARED = 8  # last tokens of a prompt, whose logits are compared: they attend to all before them
SIZES = ((0.4, 1.7), (1.3, 0.6))  # height and width of the images in a prompt, times the side of a frame


class ImagePrompt(msgspec.Struct):
    """A prompt of texts and images, which are made by a formula."""

    tokens: list[int]  # with the image token for each token of an image
    sizes: list[tuple[int, int]]  # height and width of each image


def image_prompt(folder: Path, checkpoint: Path, decoder: Decoder, encoder: ImageEncoder) -> ImagePrompt:
    """A prompt of real sentences and images between them, with as many images as fit, at least one.

    `folder`: with the tokenizer; `checkpoint`: what errors name. Raises `SourceError` if none fits.
    """
    tokenizer = Tokenizer(folder / TOKENIZER, ["input_ids"], None).backend
    sizes = [(int(height * encoder.side), int(width * encoder.side)) for height, width in SIZES]
    texts = sentences()
    for count in range(len(sizes), 0, -1):
        shown = [image_text(grid_of(*size, encoder), encoder) for size in sizes[:count]]
        parts = [text + image for text, image in zip(texts, shown, strict=False)]
        tokens = list(tokenizer.encode("".join(parts) + texts[count], add_special_tokens=False).ids)
        if len(tokens) <= decoder.max_positions:
            return ImagePrompt(tokens, sizes[:count])
    raise SourceError(
        f"{checkpoint}: an image between two sentences takes {len(tokens)} tokens, and max_position_embeddings is "
        f"{decoder.max_positions}. Export a model for longer texts, or lower the size of the image processor."
    )


def check_images(
    folder: Path,
    checkpoint: Checkpoint,
    architecture: str,
    decoder: Decoder,
    encoder: ImageEncoder,
    bounds: Bounds,
    cuts: Sequence[str],
    context: str | None,
) -> dict[str, Checked]:
    """Compare image embeddings, and the logits after images and text, of the graphs in `folder` with the source's."""
    prompt = image_prompt(folder, checkpoint.folder, decoder, encoder)
    expected = _source_outputs(checkpoint, architecture, prompt, context)
    request = (decoder, encoder, prompt, list(cuts))
    return check_sequences("image_text.check", folder, request, expected, bounds)


def _source_outputs(
    checkpoint: Checkpoint, architecture: str, prompt: ImagePrompt, context: str | None
) -> dict[str, list[Floats]]:
    """The source model's outputs by name: [tokens, width] of all images, [compared, vocab]."""
    import torch

    library = load("PIL.Image")
    with source_errors(checkpoint, architecture, Exception), torch.inference_mode():
        model: Any = source_model(checkpoint, architecture, context, streamed=True)
        pictures = [library.fromarray(images(*size, 1)[0]) for size in prompt.sizes]
        read = library_processor(checkpoint.folder)(images=[pictures], return_tensors="pt")
        given = {name: read[name] for name in ("pixel_values", "pixel_attention_mask") if name in read}
        embedded = model.get_image_features(**given).pooler_output
        ids = torch.tensor([prompt.tokens])
        logits = model(input_ids=ids, use_cache=False, **given).logits[0, -COMPARED:].float().numpy()
    expected = {EMBEDDINGS: [torch.cat(list(embedded)).float().numpy()], LOGITS: [logits]}
    check_finite(checkpoint, (array for arrays in expected.values() for array in arrays), "images")
    return expected


def _run(
    folder: Path, request: tuple[Decoder, ImageEncoder, ImagePrompt, list[str]]
) -> Iterator[dict[str, list[Floats]]]:
    decoder, encoder, prompt, cuts = request
    pictures = [images(*size, 1)[0] for size in prompt.sizes]
    with open_checked(folder / encoder.file, []) as engine:
        found = [engine.run({PIXELS: frames_of(each, encoder)})[EMBEDDINGS] for each in pictures]
    embedded = [np.asarray(rows.reshape(-1, decoder.image_width), np.float32) for rows in found]
    yield {EMBEDDINGS: embedded}
    with DecoderSession(open_checked(folder / MODEL, cuts), decoder) as session:
        held = [session.images.add(bytes([number]), rows) for number, rows in enumerate(embedded)]
        tokens = with_ids(prompt.tokens, encoder.token_id, held)
        session.append([tokens[:-COMPARED]], [0])
        yield {LOGITS: session.append([tokens[-COMPARED:]], [COMPARED])}


if __name__ == "__main__":
    answer(tuple[Decoder, ImageEncoder, ImagePrompt, list[str]], _run)
