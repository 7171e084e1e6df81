"""How much slower than float32 is a model whose custom operators were replaced by standard ones, in plain ONNX Runtime?

    python -m benchmarks.decoding.inlined [--model NAME ...] [--threads N] [--rounds N]

Both run in ONNX Runtime without our library, its threads not spinning: the float32 model, and the inlined one. They
take turns; a ratio is the median over the rounds of the inlined one's time in that round by float32's. `int8-only` is
the real MiniLM; `lut-sparse` (its outliers by magnitude, which takes no calibration and as much time) and `rtn`, both
of 4 bits, are the language model in examples/language_models/large. The last column is how long it takes to open.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import onnxruntime

from benchmarks.encoding.integer_encoder import exported, processor
from benchmarks.shared.texts import calibration_texts, token_block
from intaglio.bundle.bundle import Bundle
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.runtime.text.tokenizer import Tokenizer

Feeds = dict[str, npt.NDArray[Any]]

DECODER = Path(__file__).parents[2] / "examples" / "language_models" / "large"
CAPACITY = 256  # slots of the decoder's cache
PAST = 100  # tokens before the one of a decode step
RECIPES = {
    "lut-sparse": "passes: [{lut_sparse: {unweighted: true, sensitive: 0, compensate: false}}]",
    "rtn": "passes: [rtn]",
}
LIMIT = 2.0  # times float32


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--model", "chosen", multiple=True, type=click.Choice(["int8-only", *RECIPES]), help="Default: all.")
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=15, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the bundles here for later runs.")
def main(chosen: tuple[str, ...], threads: int, rounds: int, folder: Path | None) -> None:
    """Measure and print."""
    machine = processor()
    print(f"{machine.name}, {machine.cores} cores: {' '.join(machine.flags)}; load {machine.load:.1f} at the start")
    print(f"{threads} threads, not spinning; {rounds} rounds; ONNX Runtime {onnxruntime.__version__}\n")
    print(f"{'':12} {'input':22} {'float32':>10} {'inlined':>10}   times as long (quartiles)   opening")
    with tempfile.TemporaryDirectory() as temporary:
        for name in chosen or ("int8-only", *RECIPES):
            made, shapes = PREPARED.get(name, decoder)(name, folder or Path(temporary))
            opened = [opening(path, threads) for path in made]
            for title, feeds in shapes.items():
                show(name, title, measure([session for session, _ in opened], feeds, rounds), opened[1][1])


def encoder(name: str, place: Path) -> tuple[list[Path], dict[str, Feeds]]:
    """MiniLM in float32 and inlined, and its inputs."""
    bundle = exported("minilm", place / "minilm")
    texts = place / "texts.txt"
    texts.write_text("\n".join(calibration_texts()), encoding="utf-8")
    tokenizer = Tokenizer.open(Bundle.open(bundle))
    shapes = {f"batch {batch}, {128} tokens": dict(token_block(tokenizer, batch, 128)) for batch in (1, 8)}
    return [bundle, inlined(bundle, place / name, name, texts)], shapes


def decoder(name: str, place: Path) -> tuple[list[Path], dict[str, Feeds]]:
    """The language model in float32 and inlined, and its inputs in a decode step and a prefill."""
    bundle, recipe = place / "decoder", place / f"{name}.yaml"
    if not bundle.exists():
        export(str(DECODER), bundle, check=False)
    recipe.write_text(RECIPES[name], encoding="utf-8")
    shapes = {"one token": tokens(bundle, 1, PAST), "a prompt of 128": tokens(bundle, 128, 0)}
    return [bundle, inlined(bundle, place / name, recipe)], shapes


PREPARED: dict[str, Callable[[str, Path], tuple[list[Path], dict[str, Feeds]]]] = {"int8-only": encoder}


def inlined(bundle: Path, path: Path, recipe: str | Path, texts: Path | None = None) -> Path:
    """`bundle` compressed and then inlined, in folders next to `path`."""
    result = path.with_name(f"{path.name}-inlined")
    if not result.exists():
        compress(bundle, path, recipe, calibration=texts, force=True)
        compress(path, result, "inlined")
    return result


def tokens(bundle: Path, count: int, past: int) -> Feeds:
    """Feeds of `count` tokens after `past` cached ones, with a capacity of `CAPACITY` and all logits."""
    random = np.random.default_rng(0)
    given: Feeds = {
        "input_ids": random.integers(0, 1000, (1, count)),
        "positions": np.arange(past, past + count)[None],
        "attention_mask": np.tril(np.ones((1, count, CAPACITY), np.bool_), past),
        "write_start": np.array([past]),
        "logit_indices": np.arange(count)[None],
    }
    inputs = Bundle.open(bundle).manifest.inputs
    caches = {spec.name: (1, spec.shape[1], CAPACITY, spec.shape[3]) for spec in inputs if spec.name not in given}
    return given | {name: random.standard_normal(shape).astype(np.float32) for name, shape in caches.items()}


def opening(bundle: Path, threads: int) -> tuple[onnxruntime.InferenceSession, float]:
    """A session of plain ONNX Runtime, and the seconds that opening it took."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # without in-place caches, TensorScatter warns in every run
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(bundle / "model.onnx", options, providers=["CPUExecutionProvider"])
    return session, time.perf_counter() - start


def measure(sessions: list[onnxruntime.InferenceSession], feeds: Feeds, rounds: int) -> list[list[float]]:
    """Milliseconds of each session per round, after a warm-up round."""
    times: list[list[float]] = [[] for _ in sessions]
    for _ in range(rounds + 1):
        for session, own in zip(sessions, times, strict=True):
            start = time.perf_counter()
            session.run(None, feeds)
            own.append(1e3 * (time.perf_counter() - start))
    return [own[1:] for own in times]


def show(name: str, title: str, times: list[list[float]], seconds: float) -> None:
    """Print a line."""
    float32, ours = times
    low, ratio, high = statistics.quantiles([b / a for a, b in zip(float32, ours, strict=True)], n=4)
    medians = f"{statistics.median(float32):7.2f} ms {statistics.median(ours):7.2f} ms"
    verdict = "" if ratio <= LIMIT else f"   beyond {LIMIT:.0f}"
    print(f"{name:12} {title:22} {medians}   {ratio:5.2f} ({low:.2f} to {high:.2f})   {seconds:12.2f} s{verdict}")


if __name__ == "__main__":
    main()
