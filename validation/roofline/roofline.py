"""The verb `roofline`: the speed limit of a bundle on this machine by the bytes it reads, and its measured speed.

The model is by Williams et al. (2009); SqueezeLLM uses it in section 3.2: a run takes the longer of the time to
load its bytes from memory, and the time for its operations at the machine's peak. Both limits are measured here: the
bandwidth by reading memory, the peak by a product of float32 matrices. Integer kernels can exceed that peak.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir

from intaglio.bundle.bundle import Bundle, Manifest
from intaglio.bundle.model_file import load, save
from intaglio.display.progress import step, track
from intaglio.errors import UsageError
from intaglio.plugins.native.memory_bandwidth import Memory
from intaglio.processes.temporary import scratch_directory
from intaglio.processes.threads import check_threads
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.key_value_cache import CAPACITY_STEP
from intaglio.validation.roofline.cpu_cache import last_level_bytes
from intaglio.validation.roofline.work import Work, work

SIDE = 1536  # of the matrices whose product measures the peak
REPEATS = 7
SECONDS = 1.0  # measured per row, with at least REPEATS runs


class RooflinePoint(msgspec.Struct):
    """One run: `tokens` new tokens, after which the sequence has `length` tokens."""

    tokens: int
    length: int
    bytes: int
    operations: int
    intensity: float  # operations per byte
    bound: str  # "memory" or "compute": the lower limit
    predicted_ms: float
    measured_ms: float  # the median
    ratio: float  # predicted / measured: the fraction of the limit that is reached
    above_memory: bool  # faster than the memory bandwidth: the data was in a cache


class Roofline(msgspec.Struct):
    """The result. Bytes and operations per second."""

    bundle: str
    threads: int
    bandwidth: float
    peak: float
    cache: int | None  # bytes of the last-level cache; None if the system does not report it
    rows: list[RooflinePoint]


def roofline(
    bundle: str | Path,
    tokens: Sequence[int] = (1, 8, 64),
    lengths: Sequence[int] = (128, 1024),
    threads: int | None = None,
) -> Roofline:
    """Predict and measure `bundle` on "ort-cpu", one sequence at a time, for each of `lengths` tokens.

    A decoder appends each number of `tokens` to a sequence that then has each length: 1 is a decode step, several are
    verification of drafts, many are a prefill. Other bundles run whole sequences of each length. Raises `UsageError`
    for lengths beyond the model's limit, `EngineError` without compiled kernels.
    """
    check_threads(threads)
    opened = Bundle.open(bundle)
    manifest = opened.manifest
    if manifest.audio is not None:
        raise UsageError(
            f"bundle {bundle}: lengths in a speech recogniser's graph are computed inside it, so its work cannot be "
            f"predicted. Measure it with: intaglio bench {bundle}"
        )
    if (record := manifest.modality_record) is not None:
        raise UsageError(
            f"bundle {bundle}: reads {record.items}, and rooflines are of models of texts. Choose another bundle."
        )
    count = threads or len(os.sched_getaffinity(0))
    runs = _runs(manifest, tokens, lengths)
    with step("measuring the machine"):
        memory = Memory()
        bandwidth = statistics.median(memory.read(count) for _ in range(REPEATS))
        peak = _peak(count)
    model = load(opened.model_path, mapped=True)
    measure = _decoder if manifest.decoder is not None else _encoder
    rows = []
    with step("opening the model"):
        timed = measure(opened, count)
    for new, length in track(runs, "roofline", len(runs)):
        axes = _axes(manifest, new, length)
        measured = _median(timed(new, length))
        rows.append(_row(work(model, axes), new, length, bandwidth, peak, measured))
    return Roofline(str(bundle), count, bandwidth, peak, last_level_bytes(), rows)


def _runs(manifest: Manifest, tokens: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(new tokens, length) of every row with at least that length."""
    if not tokens or not lengths or min(*tokens, *lengths) < 1:
        raise UsageError(f"tokens {list(tokens)}, lengths {list(lengths)}: expected numbers of at least 1.")
    longest = manifest.decoder.max_positions if manifest.decoder else _longest(manifest)
    fitting = sorted({min(length, longest) for length in lengths})
    if manifest.decoder is None:
        return [(length, length) for length in fitting]
    return [(new, length) for length in fitting for new in sorted(set(tokens)) if new <= length]


def _longest(manifest: Manifest) -> int:
    maxima = [axis.maximum for name, axis in manifest.axes.items() if name != "batch" and axis.maximum]
    return min(maxima, default=512)


def _axes(manifest: Manifest, new: int, length: int) -> dict[str, int]:
    if manifest.decoder is None:
        names = {name for spec in manifest.inputs for name in spec.shape if isinstance(name, str)}
        return {name: 1 if name == "batch" else length for name in names}
    capacity = -(-length // CAPACITY_STEP) * CAPACITY_STEP
    return {"batch": 1, "tokens": new, "capacity": capacity, "positions_wanted": 1}


def _decoder(bundle: Bundle, threads: int) -> Callable[[int, int], Callable[[], object]]:
    session = DecoderSession.open(bundle, threads=threads)
    vocabulary = session.decoder.vocab_size
    random = np.random.default_rng(0)

    def prepare(new: int, length: int) -> Callable[[], object]:
        session.rollback(0)
        before = length - new
        if before:
            session.prefill([random.integers(0, vocabulary, before).tolist()])
        ids = random.integers(0, vocabulary, (1, new))

        def run() -> object:
            session.rollback(before)
            return session.step(ids)

        return run

    return prepare


def _encoder(bundle: Bundle, threads: int) -> Callable[[int, int], Callable[[], object]]:
    engine = OnnxRuntimeEngine(bundle, threads=threads)

    def prepare(new: int, length: int) -> Callable[[], object]:
        axes = _axes(bundle.manifest, new, length)
        feeds = {
            spec.name: np.ones([axes[each] if isinstance(each, str) else each for each in spec.shape], spec.dtype)
            for spec in engine.inputs
        }
        return lambda: engine.run(feeds)

    return prepare


def _median(run: Callable[[], object]) -> float:
    """Seconds of one run."""
    run()
    times: list[float] = []
    while len(times) < REPEATS or sum(times) < SECONDS:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _peak(threads: int) -> float:
    """Operations per second of a product of float32 matrices."""
    with scratch_directory("roofline") as folder:
        path = folder / "product.onnx"
        save(_product_model(), path)
        with OnnxRuntimeEngine(path, threads=threads) as engine:
            matrix = np.ones((SIDE, SIDE), np.float32)
            seconds = _median(lambda: engine.run({"a": matrix, "b": matrix}))
    return 2 * SIDE**3 / seconds


def _product_model() -> ir.Model:
    a, b = (
        ir.Value(name=name, shape=ir.Shape([SIDE, SIDE]), type=ir.TensorType(ir.DataType.FLOAT)) for name in ("a", "b")
    )
    node = ir.Node("", "MatMul", [a, b], name="product")
    product = node.outputs[0]
    product.name, product.shape, product.type = "y", a.shape, a.type
    return ir.Model(ir.Graph([a, b], [product], nodes=[node], opset_imports={"": 23}, name="product"), ir_version=10)


def _row(found: Work, new: int, length: int, bandwidth: float, peak: float, measured: float) -> RooflinePoint:
    by_memory, by_compute = found.bytes / bandwidth, found.operations / peak
    predicted = max(by_memory, by_compute)
    return RooflinePoint(
        tokens=new,
        length=length,
        bytes=found.bytes,
        operations=found.operations,
        intensity=found.operations / max(found.bytes, 1),
        bound="memory" if by_memory >= by_compute else "compute",
        predicted_ms=1e3 * predicted,
        measured_ms=1e3 * measured,
        ratio=predicted / measured,
        above_memory=measured < by_memory,
    )
