"""What does it cost that texts come one by one from concurrent callers, and not as one batch?

    python -m benchmarks.encoding.embedding_batches [--callers N] [--rounds N] [--threads N] [--words N] [--json]

The real MiniLM embeds the same 64 texts in two ways, which take turns: as one batch, in the code of `intaglio run`
(`TextRunner.run`), and by the server's worker for 64 concurrent callers with one text each, all of which are there at
once. The ratio is the worker's throughput over that of the batch; it can exceed 1, as the worker pads less. The target
is 0.8. The third way is one caller at a time, without waiting for others.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.encoding.integer_encoder import exported
from benchmarks.shared.texts import evaluation_texts
from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import track
from intaglio.runtime.text.run_texts import TextRunner
from intaglio.runtime.text.tasks import Ran
from intaglio.serve.workers.encoder_worker import EncoderWorker

TARGET = 0.8  # of the throughput of one batch
WORDS = ("time", "people", "way", "water", "day", "part", "place", "work", "world", "house")  # each is one token


class Result(msgspec.Struct):
    """Texts a second, the median of the rounds, and the median of the ratios of each round."""

    callers: int
    equal_length: bool
    batch: float
    worker: float
    alone: float
    ratio: float
    difference: float  # largest, between the numbers of an embedding from the worker and of its text alone


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--callers", default=64, show_default=True)
@click.option("--rounds", default=9, show_default=True)
@click.option("--threads", type=int, default=2, show_default=True)
@click.option("--words", default=24, show_default=True, help="Tokens of each text where all are equally long.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line per kind of texts.")
def command(callers: int, rounds: int, threads: int, words: int, as_json: bool) -> None:
    """Measure and print."""
    natural = (evaluation_texts() * (callers // 160 + 1))[:callers]
    random = np.random.default_rng(0)
    equal = [" ".join(random.choice(WORDS, words)) for _ in natural]
    with tempfile.TemporaryDirectory() as folder:
        bundle = Bundle.open(exported("minilm", Path(folder)))
        for texts in (equal, natural):
            result = measure(bundle, texts, rounds, threads, texts is equal)
            click.echo(msgspec.json.encode(result).decode() if as_json else line(result))


def measure(bundle: Bundle, texts: Sequence[str], rounds: int, threads: int, equal: bool) -> Result:
    """Let the three ways take turns."""
    # None of the engines spins, or the idle one would take the processor from the other.
    with (
        TextRunner(bundle, threads=threads, spinning=False) as runner,
        EncoderWorker(bundle, threads=threads) as worker,
        EncoderWorker(bundle, threads=threads, linger_seconds=0) as eager,
    ):

        async def together() -> list[Ran]:
            return [
                result
                for results in await asyncio.gather(*(worker.run([text]) for text in texts))
                for result in results
            ]

        async def alone() -> list[Ran]:
            return [result for text in texts for result in await eager.run([text])]

        ways: list[Callable[[], list[Ran]]] = [
            lambda: runner.run(texts),
            lambda: asyncio.run(together()),
            lambda: asyncio.run(alone()),
        ]
        _, served, single = (way() for way in ways)  # also warms up
        difference = max(float(np.abs(_vector(a) - _vector(b)).max()) for a, b in zip(served, single, strict=True))
        seconds = [[_seconds(way) for way in ways] for _ in track(range(rounds), "measuring")]
    batch, together_speed, alone_speed = (len(texts) / statistics.median(each) for each in zip(*seconds, strict=True))
    ratio = statistics.median(each[0] / each[1] for each in seconds)
    return Result(len(texts), equal, batch, together_speed, alone_speed, ratio, difference)


def _vector(result: Ran) -> npt.NDArray[np.float32]:
    assert result.embedding is not None
    return result.embedding


def _seconds(way: Callable[[], object]) -> float:
    began = time.perf_counter()
    way()
    return time.perf_counter() - began


def line(result: Result) -> str:
    """For people."""
    kind = "texts of equal length" if result.equal_length else "texts of natural length"
    return (
        f"{result.callers} {kind}: {result.batch:.0f} texts/s as one batch, {result.worker:.0f} from concurrent "
        f"callers, {result.alone:.0f} one at a time\n  ratio {result.ratio:.2f} (at least {TARGET}), "
        f"largest difference {result.difference:.1e}"
    )


if __name__ == "__main__":
    command(prog_name="python -m benchmarks.encoding.embedding_batches")
