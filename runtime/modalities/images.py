"""Images: files of pixels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from intaglio.bundle.bundle import Bundle, Image
from intaglio.errors import UsageError
from intaglio.extras import load
from intaglio.files.hashes import sha256
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.modalities.modality import Feeds, Modality, RunOptions, Workload
from intaglio.runtime.text.inputs import InputsUsed, check_counts, load_inputs
from intaglio.runtime.text.tasks import Ran
from intaglio.runtime.vision.image_file import Pixels, images_of, read_image
from intaglio.runtime.vision.image_runner import ImageRunner, feeds_of, run_images
from intaglio.runtime.vision.text_tower import embed_texts
from intaglio.samples import images as samples_of

SHIPPED = 16  # images made by a formula
HEIGHT, WIDTH = 480, 640  # of the images that `bench` runs, which the graph resizes
COUNT = 8  # of them


def load_images(
    bundle: Bundle, data: str | Path | None, samples: int, batch_size: int, option: str = "--data"
) -> tuple[list[Feeds], InputsUsed]:
    """Load batches of images, with their origin; see `LoadInputs`.

    `data` is an image, a folder of images, an .npz file of arrays, or None for images made by a formula. They are
    resized by Pillow to a size that the graph does not resize: so two models are compared on the same numbers.
    """
    check_counts(samples, batch_size)
    if data is not None and Path(data).suffix == ".npz":
        return load_inputs(bundle, data, samples, batch_size, option)
    image = bundle.manifest.image
    assert image is not None  # that is what makes it a bundle of this modality
    if image.processed:
        raise UsageError(
            f"bundle {bundle.path}: takes images that are processed elsewhere, so it needs arrays. Give them with "
            f"{option} FILE.npz"
        )
    if data is None:
        pictures = samples_of.images(image.height, image.width, min(samples, SHIPPED))
        digest = hashlib.sha256(b"".join(each.tobytes() for each in pictures)).hexdigest()
        available, source = SHIPPED, "images made by a formula"
    else:
        paths = images_of(Path(data), option)
        pictures = [resized(read_image(path), image) for path in paths[:samples]]
        digest = hashlib.sha256("\n".join(sha256(path) for path in paths).encode()).hexdigest()
        available, source = len(paths), str(data)
    feeds = [feeds_of(batch) for batch in _batches(pictures, batch_size)]
    return feeds, InputsUsed(source, digest, len(pictures), available, len(feeds))


def _batches(pictures: list[Pixels], size: int) -> Iterator[list[Pixels]]:
    """Images that follow each other and have the same size, at most `size`."""
    batch: list[Pixels] = []
    for picture in pictures:
        if batch and (len(batch) == size or batch[0].shape != picture.shape):
            yield batch
            batch = []
        batch.append(picture)
    yield batch


def resized(pixels: Pixels, image: Image) -> Pixels:
    """`pixels` as the graph resizes them, by Pillow."""
    library: Any = load("PIL.Image")
    sides = [image.height, image.width]
    if image.keeps_ratio:
        sides = [side * image.height // min(pixels.shape[:2]) for side in pixels.shape[:2]]
    filters = {"bilinear": library.Resampling.BILINEAR, "bicubic": library.Resampling.BICUBIC}
    return np.asarray(library.fromarray(pixels).resize(sides[::-1], filters[image.resample]))


def _mask(feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
    """Nothing is padded."""


def _run(bundle: Bundle, inputs: Iterable[str], options: RunOptions) -> Iterator[Ran]:
    if options.embed_texts:
        if options.labels:
            raise UsageError("labels are compared with images, and embed_texts embeds texts. Leave one of them out.")
        sizes = options.batch_size, options.truncate, options.threads
        return embed_texts(bundle, inputs, options.target, *sizes)
    labels = options.labels or ()
    return run_images(bundle, inputs, options.target, options.batch_size, options.threads, labels)


def _open(bundle: Bundle, target: str) -> Callable[[Sequence[int]], object]:
    runner, pictures = ImageRunner(bundle, target), samples_of.images(HEIGHT, WIDTH, COUNT)
    return lambda numbers: runner.run(["image"] * len(numbers), [pictures[number % COUNT] for number in numbers])


WORKLOAD = Workload("image encoder", "images", 1, _open)
IMAGES = Modality(load_images, load_images, _mask, _run, images_of, WORKLOAD)
