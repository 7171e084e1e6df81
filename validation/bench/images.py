"""Latency and throughput of a model that reads images, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.processes.threads import bounded
from intaglio.runtime.vision.image_runner import ImageRunner
from intaglio.samples.images import images
from intaglio.targets import DEFAULT
from intaglio.validation.bench.load import Load, Round
from intaglio.validation.bench.taken import refuse_text_options

HEIGHT, WIDTH = 480, 640  # of the images, which the graph resizes; no files are read
COUNT = 8  # different images


class ImageBench:
    """Runs batches of images of `HEIGHT` x `WIDTH` pixels; the load's concurrency is the batch size."""

    kind, unit = "image encoder", "images"

    def __init__(self, bundle: Bundle, options: Mapping[str, Any], prompts: Sequence[str] | None):
        """Raises `UsageError` for `options` of generation and for prompts."""
        refuse_text_options(options, prompts, f"{bundle.path} reads images and")
        with bounded(options.get("threads")):
            self._runner = ImageRunner(bundle, options.get("target", DEFAULT))
        self._images = images(HEIGHT, WIDTH, COUNT)

    def run(self, load: Load) -> Round:
        """Run a round: with a number of requests, batches of that many images in all."""
        if load.prompt_tokens is not None:
            raise UsageError("--prompt-tokens: the model reads images. Leave it out.")

        def run(numbers: list[int]) -> tuple[int, int]:
            self._runner.run(["image"] * len(numbers), [self._images[number % COUNT] for number in numbers])
            return len(numbers), 0

        return load.batched(run)
