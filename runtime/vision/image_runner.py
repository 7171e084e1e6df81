"""One forward pass over images: classes, embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from intaglio.bundle.bundle import Bundle, TensorSpec
from intaglio.bundle.image_records import PIXELS as PIXELS
from intaglio.errors import BundleError, EngineError, UsageError
from intaglio.runtime.engines.engine import Array, EngineRunner
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.text.tasks import SCORES, Ran
from intaglio.runtime.vision.image_file import Pixels, read_image
from intaglio.runtime.vision.text_tower import ZeroShot
from intaglio.targets import DEFAULT

INPUT = TensorSpec(PIXELS, "uint8", ("batch", 3, "height", "width"))  # red, green and blue
OUTPUTS = {"classify": "logits", "embed": "image_embedding"}  # task -> the output that is read, float [batch, width]


def run_images(
    bundle: Bundle,
    paths: Iterable[str | Path],
    target: str = DEFAULT,
    batch_size: int = 32,
    threads: int | None = None,
    labels: Sequence[str] = (),
) -> Iterator[Ran]:
    """Run `bundle` on the images at `paths` and yield one `Ran` for each, in order; its `text` is the path.

    `labels`: texts that a model of images and texts compares each image with, instead of embedding it.
    Up to `batch_size` images that follow each other and have the same size are run together. Raises `UsageError` for an
    image that cannot be read, `BundleError` for a bundle that does not take images.
    """
    if batch_size < 1:
        raise UsageError(f"batch size {batch_size}: expected at least 1.")
    compared = ZeroShot(bundle, labels, target, threads) if labels else None
    with ImageRunner(bundle, target, threads) as runner:
        names: list[str] = []
        batch: list[Pixels] = []
        for path in paths:
            pixels = read_image(path)
            if batch and (len(batch) == batch_size or pixels.shape != batch[0].shape):
                yield from _compared(runner.run(names, batch), compared)
                names, batch = [], []
            names.append(str(path))
            batch.append(pixels)
        if batch:
            yield from _compared(runner.run(names, batch), compared)


def _compared(results: Iterable[Ran], labels: ZeroShot | None) -> Iterator[Ran]:
    """The results, or with `labels` the scores of these."""
    for result in results:
        yield result if labels is None or result.embedding is None else labels.scores(result.text, result.embedding)


class ImageRunner(EngineRunner):
    """An opened bundle that takes images. A context manager."""

    def __init__(self, bundle: Bundle, target: str = DEFAULT, threads: int | None = None, spinning: bool = True):
        """`threads` and `spinning`: see `open_engine`. Raises `BundleError` for a bundle that does not take images."""
        self.manifest = bundle.manifest
        self._output = _checked_output(bundle)
        self.engine = open_engine(bundle, target, threads, spinning)

    def run(self, names: Sequence[str], images: Sequence[Pixels]) -> list[Ran]:
        """Run one batch of images of the same size, uint8 [height, width, 3] each; `names` are the results' texts."""
        found = self.engine.run(feeds_of(images))[self._output]
        width = len(self.manifest.labels) if self.manifest.task == "classify" else found.shape[-1]
        if found.dtype.kind != "f" or found.shape != (len(images), width):
            raise EngineError(
                f"output {self._output}: got {found.dtype} {list(found.shape)}, expected floats [{len(images)}, "
                f"{width}]. Re-export the bundle."
            )
        if self.manifest.task == "classify":
            return self._classes(names, found)
        return [Ran(name, embedding=row.astype(np.float32)) for name, row in zip(names, found, strict=True)]

    def _classes(self, names: Sequence[str], logits: Array) -> list[Ran]:
        labels, rows = self.manifest.labels, SCORES[self.manifest.activation](logits)
        return [
            Ran(
                name,
                label=labels[int(row.argmax())],
                scores={labels[index]: float(row[index]) for index in np.argsort(-row, kind="stable")},
            )
            for name, row in zip(names, rows, strict=True)
        ]


def feeds_of(images: Sequence[Pixels]) -> dict[str, Array]:
    """The input of one batch: images of the same size, uint8 [height, width, 3] each."""
    return {PIXELS: np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2))}


def _checked_output(bundle: Bundle) -> str:
    """The output that is read. Raises `BundleError` unless the bundle has what its task needs."""
    manifest = bundle.manifest
    if manifest.image is not None and manifest.image.processed:
        raise BundleError(
            f"bundle {bundle.path}: takes images that are processed elsewhere (intaglio export --features). Export it "
            "again, or give arrays to intaglio.open_engine."
        )
    name = OUTPUTS.get(manifest.task)
    outputs = {spec.name: spec for spec in manifest.outputs}
    if name is None or name not in outputs or len(outputs[name].shape) != 2:
        raise BundleError(
            f"bundle {bundle.path}: its task is {manifest.task[:40]!r}, and it has no output for it [batch, width]. "
            "Re-export it."
        )
    if list(manifest.inputs) != [INPUT]:
        raise BundleError(f"bundle {bundle.path}: does not take {PIXELS} [batch, 3, height, width]. Re-export it.")
    if manifest.task == "classify" and (
        manifest.activation not in SCORES or outputs[name].shape[1] not in ("classes", len(manifest.labels))
    ):
        raise BundleError(f"bundle {bundle.path}: its labels or activation do not fit its output. Re-export it.")
    return name
