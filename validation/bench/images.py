"""Latency and throughput of a model that reads images, in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.processes.threads import bounded
from intaglio.runtime.vision.image_runner import ImageRunner
from intaglio.samples.images import images
from intaglio.targets import DEFAULT
from intaglio.validation.bench.load import Load, Round, Timing

TAKEN = ("target", "threads")
HEIGHT, WIDTH = 480, 640  # of the images, which the graph resizes; no files are read
COUNT = 8  # different images


class ImageBench:
    """Runs batches of images of `HEIGHT` x `WIDTH` pixels; the load's concurrency is the batch size."""

    kind, unit = "image encoder", "images"

    def __init__(self, bundle: Bundle, options: Mapping[str, Any], prompts: Sequence[str] | None):
        """Raises `UsageError` for `options` of generation and for prompts."""
        unexpected = [name for name in options if name not in TAKEN]
        if unexpected or prompts is not None:
            name = unexpected[0].replace("_", "-") if unexpected else "data"
            raise UsageError(f"--{name}: {bundle.path} reads images and takes no prompts. Leave it out.")
        with bounded(options.get("threads")):
            self._runner = ImageRunner(bundle, options.get("target", DEFAULT))
        self._images = images(HEIGHT, WIDTH, COUNT)

    def run(self, load: Load) -> Round:
        """Run a round: with a number of requests, batches of that many images in all."""
        if load.prompt_tokens is not None:
            raise UsageError("--prompt-tokens: the model reads images. Leave it out.")
        began = time.perf_counter()
        timings: list[Timing] = []
        sent = 0
        for _, start in load.arrivals(began):
            batch = [self._images[(load.first + sent + place) % COUNT] for place in range(load.concurrency)]
            self._runner.run(["image"] * len(batch), batch)
            timings.append(Timing(time.perf_counter() - start, len(batch)))
            sent += len(batch)
            if load.requests is not None and sent >= load.requests:
                break
        return Round(time.perf_counter() - began, timings)
