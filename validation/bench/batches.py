"""Latency and throughput of a model that reads images, recordings, or another modality with files, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.processes.threads import bounded
from intaglio.runtime.modalities.modality import Workload
from intaglio.targets import DEFAULT
from intaglio.validation.bench.load import Load, Round
from intaglio.validation.bench.taken import refuse_text_options


class BatchBench:
    """Runs batches of the inputs of a modality's workload; the load's concurrency is the batch size."""

    def __init__(
        self,
        bundle: Bundle,
        items: str,
        workload: Workload,
        options: Mapping[str, Any],
        prompts: Sequence[str] | None,
    ):
        """`items`: what the bundle reads. Raises `UsageError` for `options` of generation and for prompts."""
        refuse_text_options(options, prompts, f"{bundle.path} reads {items} and")
        self.kind, self.unit, self._items, self._per_item = workload.kind, workload.unit, items, workload.per_item
        with bounded(options.get("threads")):
            self._run = workload.open(bundle, options.get("target", DEFAULT))

    def run(self, load: Load) -> Round:
        """Run a round: with a number of requests, batches of that many inputs in all."""
        if load.prompt_tokens is not None:
            raise UsageError(f"--prompt-tokens: the model reads {self._items}. Leave it out.")

        def run(numbers: list[int]) -> tuple[int, int]:
            self._run(numbers)
            return len(numbers) * self._per_item, 0

        return load.batched(run)
