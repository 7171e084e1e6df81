"""Measure one bundle in this process: it reads JSON lines on standard input and answers each with one.

    Opening   Opened
    Load      Round     with the process's peak memory so far

Any of them may be answered with a `Refused` instead.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from intaglio.bundle.bundle import Bundle
from intaglio.errors import IntaglioError
from intaglio.runtime.modalities.table import modality_of
from intaglio.validation.bench.batches import BatchBench
from intaglio.validation.bench.decoder import DecoderBench
from intaglio.validation.bench.encoder import EncoderBench
from intaglio.validation.bench.load import Load, Round
from intaglio.validation.bench.whisper import WhisperBench


class Opening(msgspec.Struct):
    """What to measure."""

    bundle: str
    options: dict[str, Any]  # of `TextGenerator`
    prompts: list[str] | None  # of a file; None: pieces of running text
    rows: int  # of the first load


class Opened(msgspec.Struct):
    """The kind of the bundle, and what its throughput counts."""

    kind: str
    unit: str


class Refused(msgspec.Struct):
    """An error that the user can fix: the name of its class in `intaglio.errors`, and its message."""

    error: str
    message: str


class BundleBench(Protocol):
    """What measures a bundle of one kind."""

    kind: str
    unit: str

    def run(self, load: Load) -> Round:
        """Run a round. Its prompts depend on the number of the round alone."""


def opened(opening: Opening) -> BundleBench:
    """Choose by the bundle's manifest. Raises `BundleError`, and `UsageError` for options that do not apply."""
    bundle = Bundle.open(opening.bundle)
    if bundle.manifest.transcriber is not None:
        return WhisperBench(bundle, opening.options, opening.prompts)
    record, workload = bundle.manifest.modality_record, modality_of(bundle.manifest).workload
    if record is not None and workload is not None:
        return BatchBench(bundle, record.items, workload, opening.options, opening.prompts)
    if bundle.manifest.decoder is None:
        return EncoderBench(bundle, opening.options, opening.prompts)
    return DecoderBench(bundle, opening.options, opening.prompts, opening.rows)


def peak_bytes() -> int | None:
    """The largest resident memory of this process so far; None where the system does not say."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return None


def main() -> None:
    """Answer until standard input ends."""
    bench: BundleBench | None = None
    for line in sys.stdin:
        answer: Opened | Round | Refused
        try:
            if bench is None:
                bench = opened(msgspec.json.decode(line, type=Opening))
                answer = Opened(bench.kind, bench.unit)
            else:
                answer = bench.run(msgspec.json.decode(line, type=Load))
                answer.peak_bytes = peak_bytes()
        except IntaglioError as error:
            answer = Refused(type(error).__name__, str(error))
        print(msgspec.json.encode(answer).decode(), flush=True)  # noqa: T201  the answer


if __name__ == "__main__":
    main()
