"""What does it cost to apply a grammar's mask to the logits, against llguidance's own way with NumPy?

    python -m benchmarks.decoding.grammar_mask [--vocabulary N] [--repeats N] [--json]

Masks of three kinds (a few tokens, half of them, nearly all) are applied in turns by both to float32 logits of
`--vocabulary` tokens. `milliseconds` are the shortest of `--repeats` times, as other programs only add to them, from
the mask's bits to the masked logits: the constraint's unpacking and `constrained`. The goal is 0.1 ms. Both give the
same logits, which is checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import click
import llguidance.numpy
import msgspec
import numpy as np

from intaglio.runtime.sampling.constraint import (
    Booleans,
    LogitConstraint,
    Logits,
    Octets,
    constrained,
    masking_memory,
)
from intaglio.runtime.sampling.grammar import read_mask

GOAL = 0.1  # milliseconds


class Row(msgspec.Struct):
    """A kind of mask."""

    allowed: float  # fraction of the tokens
    milliseconds: float
    llguidance_milliseconds: float
    speed: float  # llguidance's time over ours
    of_goal: float  # our time over the goal


class Bits(LogitConstraint):
    """A constraint that reads the same bits whenever it is asked, as `GrammarConstraint` does for a new text."""

    def __init__(self, bits: Octets, size: int):
        self._bits, self._size = bits, size

    def octets(self, written: Sequence[int]) -> Octets:
        """See `LogitConstraint`."""
        return read_mask(self._bits, self._size, self._size, ()).octets

    def allowed(self, written: Sequence[int]) -> Booleans:
        """See `LogitConstraint`."""
        return np.unpackbits(self.octets(written), count=self._size, bitorder="little").view(np.bool_)


def shortest_milliseconds(runs: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the shortest time of each of `runs`, which run in turns."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for place, run in enumerate(runs):
            started = time.perf_counter()
            run()
            seconds[place].append(time.perf_counter() - started)
    return [1e3 * min(each) for each in seconds]


def measure(allowed: float, size: int, repeats: int) -> Row:
    """Compare the two for a random mask with this fraction of allowed tokens."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=size).astype(np.float32)
    mask = generator.random(size // 32 * 32 + 32) < allowed  # one bit more than tokens, in words
    bits = np.packbits(mask, bitorder="little")
    words = bits.view(np.int32)[None]
    constraint, memory = Bits(bits, size), masking_memory(logits)
    copy = logits.copy()[None]  # llguidance writes in place, where the logits stay masked from the first time on

    def ours() -> Logits:
        return constrained(logits, constraint, (), memory)

    def theirs() -> object:
        return llguidance.numpy.apply_token_bitmask_inplace(copy, words)

    theirs()
    np.testing.assert_array_equal(ours(), copy[0])
    mine, peer = shortest_milliseconds([ours, theirs], repeats)
    return Row(allowed, mine, peer, peer / mine, mine / GOAL)


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--vocabulary", default=150_000, show_default=True, help="Number of logits.")
@click.option("--repeats", default=1000, show_default=True, help="Measurements of each.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(vocabulary: int, repeats: int, as_json: bool) -> None:
    """Measure and print."""
    rows = [measure(allowed, vocabulary, repeats) for allowed in (0.0005, 0.5, 0.98)]
    if as_json:
        click.echo(msgspec.json.encode(rows).decode())
        return
    for row in rows:
        print(
            f"{row.allowed:7.2%} allowed: {row.milliseconds:.3f} ms, llguidance {row.llguidance_milliseconds:.3f} ms: "
            f"{row.speed:.1f} times as fast, {row.of_goal:.2f} of the goal of {GOAL} ms"
        )


if __name__ == "__main__":
    main()
