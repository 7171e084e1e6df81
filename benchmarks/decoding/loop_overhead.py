"""What does the decoding loop take beside its calls of the model?

    python -m benchmarks.decoding.loop_overhead [--tokens N] [--rounds N] [--json]

`examples/language_models/large`, one thread, so that a call is as short as calls of a decoder get: greedily, sampled
with a temperature, top-k and top-p, and four texts in a batch. What is not within ONNX Runtime's call is the loop's:
choosing tokens, the buffers, the requests, the texts. `of 3 ms` is its part of a step whose call takes 3 ms, which the
loop does not know of. Medians over the rounds, behind one that warms up.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
import onnxruntime

from intaglio.runtime.generation.generate import TextGenerator

MODEL = Path(__file__).parent.parent.parent / "examples" / "language_models" / "large"
PROMPT = "The standard library"
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 1},
    "greedy, 4 texts": {"batch": 4},
}
CALL = 3000.0  # microseconds
LIMIT = 0.05  # of such a step


class Overhead(msgspec.Struct):
    """Microseconds of a step."""

    way: str
    call: float
    loop: float

    @property
    def share(self) -> float:
        """The loop's part of a step whose call takes `CALL`."""
        return self.loop / (CALL + self.loop)


class _Calls:
    """The seconds and the number of the calls of ONNX Runtime."""

    def __init__(self) -> None:
        self.seconds, self.count = 0.0, 0


@contextmanager
def timed_calls() -> Iterator[_Calls]:
    """Times the calls of every session inside of the block."""
    calls, session = _Calls(), onnxruntime.InferenceSession
    original = session.run_with_iobinding

    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(self, *arguments, **options)
        finally:
            calls.seconds += time.perf_counter() - start
            calls.count += 1

    session.run_with_iobinding = run
    try:
        yield calls
    finally:
        session.run_with_iobinding = original


def measured(bundle: Path, way: str, tokens: int, rounds: int) -> Overhead:
    """The overhead of one way."""
    options = WAYS[way]
    prompts = [PROMPT] * options.get("batch", 1)
    found = []
    with TextGenerator(bundle, max_new_tokens=tokens, ignore_eos=True, threads=1, **options) as generator:
        for _ in range(rounds + 1):
            with timed_calls() as calls:
                start = time.perf_counter()
                for run in generator.generate_many(prompts):
                    run.result()
                whole = time.perf_counter() - start
            found.append((calls.seconds / calls.count * 1e6, (whole - calls.seconds) / calls.count * 1e6))
    call, loop = (statistics.median(column) for column in zip(*found[1:], strict=True))
    return Overhead(way, call, loop)


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--tokens", default=200, show_default=True, help="Tokens of a text.")
@click.option("--rounds", default=9, show_default=True, help="Texts, of which the median counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(tokens: int, rounds: int, as_json: bool) -> None:
    """Export the model and measure."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        command = [sys.executable, "-m", "intaglio", "export", str(MODEL), "-o", str(bundle)]
        subprocess.run(command, check=True, capture_output=True)
        found = [measured(bundle, way, tokens, rounds) for way in WAYS]
    if as_json:
        click.echo(msgspec.json.encode({"overheads": found}).decode())
        return
    click.echo(f"{'':18}{'call us':>9}{'loop us':>9}{'of 3 ms':>9}{'at most':>9}")
    for each in found:
        click.echo(f"{each.way:18}{each.call:9.0f}{each.loop:9.0f}{each.share:9.1%}{LIMIT:9.0%}")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.decoding.loop_overhead")
