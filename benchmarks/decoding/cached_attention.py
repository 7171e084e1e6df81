"""How fast is attention to a cache, against ONNX Runtime's own operator?

    python -m benchmarks.decoding.cached_attention [--bundle BUNDLE] [--cache-bits 8] [--threads N ...] [--rounds N]
        [--json]

One node of each, with the same queries, keys, values and mask in float32, takes turns in one process, idle threads
asleep. Gigabytes a second count the keys and values of the slots that are attended to. The limit: never slower, and
at least twice as fast for rows of 100 to 4000 tokens. With a decoder's bundle, whole steps of one token are measured
instead, of one row and of eight, in which attention is a part. With --cache-bits the caches hold slots of so many bits,
and "theirs" is our own operator on caches of float32.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import msgspec
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from benchmarks.encoding.integer_encoder import processor
from intaglio.bundle.plan_record import CACHE_BITS
from intaglio.plugins import ort as kernels
from intaglio.plugins.quantize_cache.slots import dequantize, quantize
from intaglio.plugins.registry import DOMAIN, VERSION
from intaglio.runtime.engines.onnxruntime import engine
from intaglio.runtime.sessions.decoder import DecoderSession

OURS, THEIRS = ("CachedAttention", DOMAIN), ("Attention", "")
ERROR = 1e-5  # of the largest value


@dataclass(frozen=True)
class Shape:
    """A step: rows with `lengths` slots, the last `tokens` of them new, of a cache of `capacity`."""

    title: str
    lengths: tuple[int, ...]
    capacity: int
    tokens: int = 1
    heads: int = 32
    kv_heads: int = 8
    depth: int = 64

    def arrays(self, random: np.random.Generator) -> dict[str, Any]:
        """The node's inputs by name."""
        batch, ends = len(self.lengths), np.array(self.lengths)[:, None, None, None]
        cache = (batch, self.kv_heads, self.capacity, self.depth)
        new = np.arange(self.tokens)[:, None] - self.tokens + 1
        return {
            "query": random.normal(size=(batch, self.heads, self.tokens, self.depth), scale=0.1).astype(np.float32),
            "key": random.normal(size=cache).astype(np.float32),
            "value": random.normal(size=cache).astype(np.float32),
            "mask": np.arange(self.capacity) < ends + new,
        }


ROWS = (100, 400, 700, 1000, 1500, 2000, 3000, 4000)
SHAPES = (
    Shape("one row, full", (4096,), 4096),
    Shape("one row, a quarter of the capacity", (1024,), 4096),
    Shape("one row, full, no shared heads", (2048,), 2048, kv_heads=32),
    Shape("one row, full, heads of 128", (4096,), 4096, depth=128),
    Shape("one row, full, one head for all", (8192,), 8192, heads=8, kv_heads=1, depth=256),
    Shape("8 rows of 100 to 4000", ROWS, 4096),
    Shape("6 drafts after 2000", (2006,), 2048, tokens=6),
    Shape("prompt of 512", (512,), 512, tokens=512),
    Shape("prompt of 2048", (2048,), 2048, tokens=2048),
)


class Row(msgspec.Struct):
    """A shape: milliseconds of both, medians over the rounds, and the median of the ratios within a round."""

    title: str
    threads: int
    ours: float
    theirs: float
    ratio: float
    gigabytes: float


@click.command()
@click.option("--bundle", type=click.Path(path_type=Path, exists=True), help="Decoder for at least 4096 tokens.")
@click.option("--cache-bits", type=click.Choice([*map(str, CACHE_BITS)]), help="Of quantised caches.")
@click.option("--threads", multiple=True, default=(1, 2), show_default=True)
@click.option("--rounds", default=9, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(bundle: Path | None, cache_bits: str | None, threads: Sequence[int], rounds: int, as_json: bool) -> None:
    """Print a table of all shapes, or of a bundle's steps."""
    machine, random = processor(), np.random.default_rng(0)
    bits = None if cache_bits is None else int(cache_bits)
    if bundle is None:
        rows = [measure(shape, bits, count, rounds, random) for count in threads for shape in SHAPES]
    else:
        rows = [steps(bundle, lengths, bits, count, rounds) for count in threads for lengths in ((900,), ROWS)]
    if as_json:
        print(msgspec.json.encode({"processor": machine, "rows": rows}).decode())
        return
    print(f"{machine.name}, {machine.cores} processors, load {machine.load:.1f}; onnxruntime {onnxruntime.__version__}")
    print(f"{'threads':7}  {'':36}  {'ours, ms':>9}  {'theirs, ms':>10}  {'ratio':>6}  {'GB/s':>5}")
    for row in rows:
        times = f"{row.ours:9.2f}  {row.theirs:10.2f}  {row.ratio:6.2f}  {row.gigabytes:5.1f}"
        print(f"{row.threads:7}  {row.title:36}  {times}")


def measure(shape: Shape, bits: int | None, threads: int, rounds: int, random: np.random.Generator) -> Row:
    """Both operators in turn. Raises `SystemExit` if their results differ."""
    arrays = theirs = shape.arrays(random)
    attributes: dict[str, int] = {}
    if bits is not None:
        of_keys, of_values = CACHE_BITS[bits]
        slots = {"key": quantize(arrays["key"], of_keys), "value": quantize(arrays["value"], of_values)}
        floats = {"key": dequantize(slots["key"], shape.depth, of_keys)}
        floats["value"] = dequantize(slots["value"], shape.depth, of_values)
        attributes = {"key_bits": of_keys, "value_bits": of_values, "value_depth": shape.depth}
        arrays, theirs = {**arrays, **slots}, {**arrays, **floats}
    peer = THEIRS if bits is None else OURS
    runs = [
        (session(*OURS, arrays, shape.depth, threads, **attributes), arrays),
        (session(*peer, theirs, shape.depth, threads), theirs),
    ]
    found, expected = (each.run(None, given)[0] for each, given in runs)
    if (error := float(np.abs(found - expected).max() / np.abs(expected).max())) > ERROR:
        raise SystemExit(f"{shape.title}: the results differ by {error:.1e} of the largest value.")
    read = sum(shape.lengths) * sum(arrays[name][0, :, 0].nbytes for name in ("key", "value"))
    pair = [lambda each=each, given=given: each.run(None, given) for each, given in runs]
    return in_turn(shape.title, threads, rounds, pair, read)


def steps(bundle: Path, lengths: Sequence[int], bits: int | None, threads: int, rounds: int) -> Row:
    """Steps of one token for rows with `lengths` slots, which are zeros."""
    title = f"steps of {len(lengths)} rows" if len(lengths) > 1 else f"steps after {lengths[0]}"
    attend = engine.attend_by_our_kernel if bits is not None else lambda model: None
    with (
        with_lengths(bundle, lengths, bits, threads) as ours,
        patch.object(engine, "attend_by_our_kernel", attend),
        with_lengths(bundle, lengths, None, threads) as theirs,
    ):
        return in_turn(title, threads, rounds, [ours, theirs], 0)


@contextmanager
def with_lengths(
    bundle: Path, lengths: Sequence[int], bits: int | None, threads: int
) -> Iterator[Callable[[], object]]:
    """Open a decoder whose rows have `lengths` slots; yields a function that runs a step and takes it back."""
    with DecoderSession.open(bundle, batch=len(lengths), threads=threads, spinning=False, cache_bits=bits) as session:
        session.cache.resize(-(-(max(lengths) + 1) // 128) * 128)
        session.lengths[:] = lengths

        def step() -> None:
            session.step([[7]] * len(lengths))
            session.rollback([*lengths])

        yield step


def in_turn(title: str, threads: int, rounds: int, pair: Sequence[Callable[[], object]], read: int) -> Row:
    """Time ours and theirs in every round; `read`: bytes."""
    times: list[list[float]] = []
    for _ in range(rounds):
        times.append([])
        for each in pair:
            start = time.perf_counter()
            each()
            times[-1].append(1e3 * (time.perf_counter() - start))
    mine, other = (statistics.median(each) for each in zip(*times, strict=True))
    return Row(title, threads, mine, other, statistics.median(b / a for a, b in times), read / mine / 1e6)


def session(
    operator: str, domain: str, arrays: dict[str, Any], depth: int, threads: int, **attributes: int
) -> onnxruntime.InferenceSession:
    """A graph of one node."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in arrays.items()}
    inputs = [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in arrays.items()]
    output = helper.make_tensor_value_info("context", TensorProto.FLOAT, (*arrays["query"].shape[:3], depth))
    node = helper.make_node(operator, list(arrays), ["context"], domain=domain, scale=1.0, **attributes)
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid(DOMAIN, VERSION)]
    graph = helper.make_graph([node], "attention", inputs, [output])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not kernels.register(options):
        raise SystemExit("no compiled kernels. Install a C++ compiler, then intaglio again.")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main()
