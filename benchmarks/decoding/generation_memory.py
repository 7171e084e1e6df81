"""How much memory does a process need that generates text, against the file that its weights come from?

    python -m benchmarks.decoding.generation_memory BUNDLE [--file MODEL.gguf] [--tokens 64] [--threads N] [--json]

The file is by default the bundle's own ONNX file, with its external data. A first process has an empty session of ONNX
Runtime, and then the bundle's tokenizer, too; a second one generates text, and its peak counts. Memory is what is
resident: mapped pages of files count, although the system can take them back at any time. The limit: beyond the empty
session and the cache, 1.1 times the file.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click
import msgspec

LIMIT = 1.1
PROMPT = "def fibonacci(n):\n"


class Result(msgspec.Struct):
    """All in bytes but the speed."""

    file: int
    bundle: int  # its ONNX file and external data
    empty: int  # an empty session
    tokenizer: int  # beside it
    opened: int  # peak once the generator is open
    peak: int
    cache: int
    ratio: float  # of the peak, without empty session and cache, to the file
    tokens_per_second: float


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.argument("bundle", type=click.Path(exists=True, path_type=Path))
@click.option("--file", type=click.Path(exists=True, path_type=Path), help="File that the bundle was exported from.")
@click.option("--tokens", default=64, help="Tokens to generate.", show_default=True)
@click.option("--threads", type=int, help="Threads of ONNX Runtime. By default all cores.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(bundle: Path, file: Path | None, tokens: int, threads: int | None, as_json: bool) -> None:
    """Measure and print."""
    size = sum(path.stat().st_size for path in bundle.glob("model.onnx*"))
    source = file.stat().st_size if file else size
    empty, tokenizer = _in_process(_open_nothing, bundle)
    opened, peak, cache, speed = _in_process(_generate, bundle, tokens, threads)
    result = Result(source, size, empty, tokenizer, opened, peak, cache, (peak - empty - cache) / source, speed)
    click.echo(msgspec.json.encode(result).decode() if as_json else text(result))


def text(result: Result) -> str:
    """The result in lines."""
    sizes = {
        "file": result.file,
        "bundle's weights": result.bundle,
        "empty session": result.empty,
        "the tokenizer": result.tokenizer,
        "opened, peak": result.opened,
        "generating, peak": result.peak,
        "cache": result.cache,
    }
    lines = [f"{name:22}{size / 1e6:8.1f} MB   {size / result.file:5.2f} x the file" for name, size in sizes.items()]
    lines.append(f"peak without empty session and cache: {result.ratio:.2f} x the file   (at most {LIMIT})")
    return "\n".join([*lines, f"{result.tokens_per_second:.1f} tokens a second"])


def _in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def _memory(key: str) -> int:
    """Bytes of this process, by a line of its status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def _open_nothing(bundle: Path) -> tuple[int, int]:
    """The memory of a process with everything but a model, and of the tokenizer."""
    import onnxruntime
    from onnx import TensorProto, helper

    from intaglio.bundle.bundle import Bundle
    from intaglio.runtime.generation import generate  # noqa: F401
    from intaglio.runtime.text.tokenizer import read_backend

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "empty", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    empty = _memory("VmRSS")
    tokenizer = read_backend(Bundle.open(bundle))
    assert session.get_inputs() and tokenizer.get_vocab_size()
    return empty, _memory("VmRSS") - empty


def _generate(bundle: Path, tokens: int, threads: int | None) -> tuple[int, int, int, float]:
    """Peaks after opening and after generating, the bytes of the cache, and the speed."""
    import numpy as np

    from intaglio.runtime.generation.generate import TextGenerator

    with TextGenerator(bundle, max_new_tokens=tokens, threads=threads, ignore_eos=True) as generator:
        opened = _memory("VmHWM")
        (text,) = [run.result() for run in generator.generate_many([PROMPT])]
        session = generator._model
        cached = [spec for spec in session.engine.inputs if spec.name.startswith("past_")]
        slot = sum(int(spec.shape[1]) * int(spec.shape[3]) * np.dtype(spec.dtype).itemsize for spec in cached)
        return opened, _memory("VmHWM"), slot * session.cache.capacity, text.tokens_per_second


if __name__ == "__main__":
    main()
