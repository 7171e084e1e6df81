"""What does it bring to write requests side by side, and what does it cost those that are being written?

    python -m benchmarks.decoding.scheduler [--checkpoint CHECKPOINT] [--recipe NAME] [--threads N] [--rounds N]
        [--json]

Eight requests of different lengths arrive one after the other and are written by a scheduler of eight rows, and then
one at a time by one of one row: tokens a second of both, and their ratio. At batch 1 a pass is bound by reading the
weights, so the passes that one at a time takes over those side by side limit that ratio; what they read of weights a
second is printed for both. Then, while seven are being written, a late request comes: its first token against the time
that it takes alone and one chunk and one step more. Then eight requests that share 400 tokens, of which the tokens that
the model read are counted.

Without --checkpoint the model is a LLaMA of 134 million random parameters: speed does not depend on their values.
examples/chat_model.py makes a trained one. With `pip install 'intaglio[peers]'` llama.cpp writes the same requests in
eight sequences, all of which are there from the start, in Q4_0; only for LLaMAs in float16.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import numpy as np

from benchmarks.shared import llama_cpp_peer, random_llama
from benchmarks.shared.contestants import fresh_process, left_out
from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import step
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Failed
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.generation.scheduling.scheduler import Scheduler
from intaglio.runtime.generation.scheduling.scheduler_options import SchedulerOptions
from intaglio.runtime.sessions.decoder import DecoderSession

SHAPE = random_llama.Shape(hidden=768, feed_forward=2048, layers=12, heads=12)
ROWS = 8
PROMPTS = (16, 120, 40, 200, 8, 64, 30, 90)  # tokens
WRITTEN = (96, 64, 128, 48, 96, 80, 112, 64)
APART = 2  # tokens of the first request between the arrivals of two others
LATE = 200  # tokens of the late request's prompt
SHARED, OWN = 400, 16  # tokens of the prompts that have a prefix in common
CHUNK = 128


class Throughput(msgspec.Struct):
    """The same requests in some rows."""

    rows: int
    tokens_per_second: float
    passes: int
    weight_gigabytes_per_second: float


class Result(msgspec.Struct):
    """All that was measured; medians of the rounds."""

    weight_bytes: int
    together: Throughput
    alone: Throughput
    ratio: float
    limit: float  # passes alone over passes together
    late_seconds: float  # until the first token of a request that comes while seven are written
    late_expected: float  # its time alone, a chunk, and a step of the seven
    shared_read: int  # tokens
    shared_expected: int
    llama_cpp_tokens_per_second: float | None = None


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--checkpoint", type=click.Path(path_type=Path), help="A decoder; by default one is made.")
@click.option("--recipe", default="rtn", show_default=True, help="Compress it first; none: float32.")
@click.option("--threads", type=int, default=2, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--part", default=1.0, show_default=True, help="Of the tokens to write, to try it out.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def command(checkpoint: Path | None, recipe: str, threads: int, rounds: int, part: float, as_json: bool) -> None:
    """Measure and print."""
    written = [max(int(count * part), 2) for count in WRITTEN]
    with tempfile.TemporaryDirectory() as temporary:
        source = checkpoint or random_llama.checkpoint(Path(temporary) / "checkpoint", SHAPE, "float32")
        bundle = _bundle(source, Path(temporary), recipe)
        result = measure(bundle, threads, rounds, written)
        if reason := llama_cpp_peer.missing() or llama_cpp_peer.unsupported(source):
            left_out("llama.cpp", reason)
        else:
            with step("llama.cpp"), fresh_process() as process:
                given = source, Path(temporary), threads, PROMPTS, written
                result.llama_cpp_tokens_per_second = process.submit(llama_cpp_peer.side_by_side, *given).result()
    click.echo(msgspec.json.encode(result).decode() if as_json else table(result))


def _bundle(checkpoint: Path, folder: Path, recipe: str) -> Path:
    with step("exporting"):
        export(str(checkpoint), folder / "float", check=False)
        if recipe == "none":
            return folder / "float"
        compress(folder / "float", folder / "compressed", recipe)
        return folder / "compressed"


def measure(bundle: Path, threads: int, rounds: int, written: Sequence[int]) -> Result:
    """All of it, but for peers."""
    opened = Bundle.open(bundle)
    size = sum(file.bytes for name, file in opened.manifest.files.items() if name.startswith("model.onnx"))
    with (
        DecoderSession.open(bundle, batch=ROWS, threads=threads, spinning=False) as many,
        DecoderSession.open(bundle, threads=threads, spinning=False) as one,
    ):
        throughput(opened, many, written, size), throughput(opened, one, written, size)  # binds buffers
        together, alone = [], []
        late: list[tuple[float, float]] = []
        for _ in range(rounds):
            together.append(throughput(opened, many, written, size))
            alone.append(throughput(opened, one, written, size))
            late.append(late_request(opened, many))
        read, expected = shared_prefix(opened, many)
    first, second = _median(together), _median(alone)
    return Result(
        weight_bytes=size,
        together=first,
        alone=second,
        ratio=first.tokens_per_second / second.tokens_per_second,
        limit=second.passes / first.passes,
        late_seconds=statistics.median(seconds for seconds, _ in late),
        late_expected=statistics.median(seconds for _, seconds in late),
        shared_read=read,
        shared_expected=expected,
    )


def _median(rounds: Sequence[Throughput]) -> Throughput:
    return sorted(rounds, key=lambda each: each.tokens_per_second)[len(rounds) // 2]


def tokens(seed: int, count: int) -> list[int]:
    """A prompt that shares no beginning with those of other seeds."""
    return [10 + seed, *np.random.default_rng(seed).integers(10, 1000, count - 1).tolist()]


def request(prompt: Sequence[int], count: int, reuse: bool = False) -> GenerationRequest:
    """The request: greedy, of a fixed length."""
    return GenerationRequest(prompt, max_new_tokens=count, ignore_eos=True, reuse_prefix=reuse)


def _scheduler(bundle: Bundle, session: DecoderSession) -> Scheduler:
    session.rollback(0)
    return Scheduler(bundle, session, options=SchedulerOptions(chunk=CHUNK))


def _step(scheduler: Scheduler) -> float:
    """Seconds of a step."""
    began = time.perf_counter()
    for event in scheduler.step():
        if isinstance(event, Failed):
            raise event.error
    return time.perf_counter() - began


def throughput(bundle: Bundle, session: DecoderSession, written: Sequence[int], weight_bytes: int) -> Throughput:
    """Write all requests, which come one after the other while the first is written, in the rows of `session`."""
    scheduler = _scheduler(bundle, session)
    asked = [request(tokens(number, PROMPTS[number]), count) for number, count in enumerate(written)]
    states = [scheduler.submit(asked[0])]
    passes, began = 0, time.perf_counter()
    while len(states) < len(asked) or not scheduler.idle:
        if len(states) < len(asked) and len(states[0].tokens) >= APART * len(states):
            states.append(scheduler.submit(asked[len(states)]))
        _step(scheduler)
        passes += 1
    seconds = time.perf_counter() - began
    count = sum(len(state.tokens) for state in states)
    return Throughput(session.batch, count / seconds, passes, passes * weight_bytes / seconds / 1e9)


def late_request(bundle: Bundle, session: DecoderSession) -> tuple[float, float]:
    """Seconds until the first token of a request beside seven others, and the expected time."""
    scheduler = _scheduler(bundle, session)
    alone = scheduler.submit(request(tokens(50, LATE), 1))
    chunks = []
    while not alone.ended:
        chunks.append(_step(scheduler))
    for number in range(ROWS - 1):
        scheduler.submit(request(tokens(number, 16), 1000))
    steps = [_step(scheduler) for _ in range(30)][-10:]
    late = scheduler.submit(request(tokens(51, LATE), 1))
    while not late.ended:
        _step(scheduler)
    scheduler.close()
    expected = sum(chunks) + max(chunks) + statistics.median(steps)
    return late.result().queued_seconds + late.result().seconds, expected


def shared_prefix(bundle: Bundle, session: DecoderSession) -> tuple[int, int]:
    """The tokens that the model read of eight requests with a prefix in common, and those that it had to."""
    scheduler = _scheduler(bundle, session)
    prefix = tokens(60, SHARED)
    states: list[RequestState] = [
        scheduler.submit(request([*prefix, *tokens(number, OWN)], 1, reuse=True)) for number in range(ROWS)
    ]
    while not scheduler.idle:
        _step(scheduler)
    return sum(state.counts.processed.large for state in states), SHARED + ROWS * OWN


def table(result: Result) -> str:
    """For people."""
    lines = [
        f"{len(PROMPTS)} requests, weights of {result.weight_bytes / 1e6:.0f} MB",
        *(
            f"  {each.rows} rows: {each.tokens_per_second:6.1f} tokens/s in {each.passes} passes, "
            f"{each.weight_gigabytes_per_second:.1f} GB/s of weights"
            for each in (result.together, result.alone)
        ),
        f"  ratio {result.ratio:.2f}; at most {result.limit:.2f}, if passes took no longer than reading the weights",
        f"late request: first token after {1e3 * result.late_seconds:.0f} ms; "
        f"alone, a chunk and a step: {1e3 * result.late_expected:.0f} ms",
        f"prefix of {SHARED} tokens in {ROWS} prompts: {result.shared_read} tokens read, "
        f"{result.shared_expected} if it is read once",
    ]
    if (peer := result.llama_cpp_tokens_per_second) is not None:
        ours = result.together.tokens_per_second
        lines.append(f"llama.cpp, {ROWS} sequences, Q4_0: {peer:.1f} tokens/s; ours {ours / peer:.2f} times that")
    return "\n".join(lines)


if __name__ == "__main__":
    command(prog_name="python -m benchmarks.decoding.scheduler")
