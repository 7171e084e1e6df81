"""The contestants of the integer-only encoder benchmarks: how each builds its model from a float32 bundle and opens it.

Every contestant runs in its own processes: the libraries' threads disturb one another within one process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import step

if TYPE_CHECKING:
    from onnxruntime.quantization import CalibrationDataReader

Array = npt.NDArray[np.generic]
Feeds = dict[str, Array]
Runner = Callable[[Feeds], list[Array]]  # every output, in the order of the bundle's


class Settings(msgspec.Struct, frozen=True):
    """The settings shared by all contestants."""

    threads: int = 2
    spinning: bool = True  # ONNX Runtime's busy-waiting, its default, which slows other processes


@dataclass(frozen=True)
class Contestant:
    """`prepare(bundle, folder, texts)` writes a model built from the bundle and the calibration texts, and returns it.

    `open(model, bundle, settings)` gives the function that runs it. Both are called in a fresh process.
    """

    title: str
    needs: tuple[str, ...]  # modules beyond intaglio's own
    prepare: Callable[[Bundle, Path, list[str]], Path]
    open: Callable[[Path, Bundle, Settings], Runner]

    def missing(self) -> list[str]:
        """The modules that are not installed."""
        return [module for module in self.needs if importlib.util.find_spec(module) is None]


def _compress(bundle: Bundle, folder: Path, texts: list[str]) -> Path:
    calibration = folder / "calibration.txt"
    calibration.write_text("\n".join(texts) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "intaglio", "compress", str(bundle.path), "-o", str(folder / "bundle")]
    command += ["--recipe", "int8-only", "--calibration", str(calibration)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode != 0:
        raise RuntimeError((child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1])
    return folder / "bundle"


def _as_exported(bundle: Bundle, folder: Path, texts: list[str]) -> Path:
    return bundle.model_path


def _quantize_dynamic(bundle: Bundle, folder: Path, texts: list[str]) -> Path:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        _preprocessed(bundle, folder), folder / "model.onnx", per_channel=True, weight_type=QuantType.QInt8
    )
    return folder / "model.onnx"


def _quantize_static(bundle: Bundle, folder: Path, texts: list[str]) -> Path:
    """Q/DQ around the matrix products, with the best of the dtypes and operators that were tried.

    With signed activations it was slower than float32; with the default list of operators hardly faster than so,
    at a cosine of 0.65 instead of 0.94.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    quantize_static(
        _preprocessed(bundle, folder),
        folder / "model.onnx",
        _reader(bundle, texts),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["MatMul", "Gemm"],
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return folder / "model.onnx"


def _preprocessed(bundle: Bundle, folder: Path) -> Path:
    """The model after the preprocessing that ONNX Runtime's documentation recommends before quantisation."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    # Its symbolic shape inference does not support the model's opset; ONNX's own still runs.
    quant_pre_process(str(bundle.model_path), str(folder / "preprocessed.onnx"), skip_symbolic_shape=True)
    return folder / "preprocessed.onnx"


def _reader(bundle: Bundle, texts: list[str]) -> CalibrationDataReader:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # the library has no type hints
        def __init__(self) -> None:
            self.feeds = _calibration_feeds(bundle, texts)

        def get_next(self) -> Feeds | None:
            return next(self.feeds, None)

    return Reader()


def _quantize_openvino(bundle: Bundle, folder: Path, texts: list[str]) -> Path:
    import nncf
    import openvino

    quantized = nncf.quantize(
        openvino.Core().read_model(bundle.model_path),
        nncf.Dataset(list(_calibration_feeds(bundle, texts))),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(texts),
    )
    openvino.save_model(quantized, folder / "model.xml", compress_to_fp16=False)
    return folder / "model.xml"


def _calibration_feeds(bundle: Bundle, texts: list[str]) -> Iterator[Any]:
    from intaglio.runtime.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.open(bundle)
    return (tokenizer.feeds([text], truncate=True) for text in texts)


def _open_onnxruntime(model: Path, bundle: Bundle, settings: Settings) -> Runner:
    from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine

    source = Bundle.open(model) if model.is_dir() else model
    engine = OnnxRuntimeEngine(source, threads=settings.threads, spinning=settings.spinning)
    return lambda feeds: list(engine.run(feeds).values())


def _open_openvino(model: Path, bundle: Bundle, settings: Settings, **options: str) -> Runner:
    import openvino

    config = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": settings.threads, **options}
    request = openvino.Core().compile_model(str(model), "CPU", config).create_infer_request()
    names = [spec.name for spec in bundle.manifest.outputs]

    def run(feeds: Feeds) -> list[Array]:
        request.infer(feeds, share_inputs=True, share_outputs=True)
        return [request.get_tensor(name).data.copy() for name in names]

    return run


def _open_openvino_float32(model: Path, bundle: Bundle, settings: Settings) -> Runner:
    return _open_openvino(model, bundle, settings, INFERENCE_PRECISION_HINT="f32")


BASE = "ort-float32"  # the reference of all ratios
OURS = "ours"
STRONGEST = "openvino-int8"
ORT, OPENVINO = ("onnxruntime",), ("openvino",)
CONTESTANTS = {
    BASE: Contestant("ONNX Runtime, float32", ORT, _as_exported, _open_onnxruntime),
    "ort-dynamic": Contestant("ONNX Runtime, dynamic INT8", ORT, _quantize_dynamic, _open_onnxruntime),
    "ort-static": Contestant("ONNX Runtime, static Q/DQ INT8", ORT, _quantize_static, _open_onnxruntime),
    "openvino-float32": Contestant("OpenVINO, float32", OPENVINO, _as_exported, _open_openvino_float32),
    "openvino": Contestant("OpenVINO, default settings", OPENVINO, _as_exported, _open_openvino),
    STRONGEST: Contestant("OpenVINO, INT8 by NNCF", ("openvino", "nncf"), _quantize_openvino, _open_openvino),
    OURS: Contestant("Intaglio, int8-only", ORT, _compress, _open_onnxruntime),
}


class Process:
    """A contestant's model, opened in its own process (`pool`), which serves one call at a time."""

    def __init__(self, pool: ProcessPoolExecutor, name: str, model: Path, bundle: Path, settings: Settings):
        self._pool = pool
        self._pool.submit(_open, name, model, bundle, settings).result()

    def turn(self, feeds: Feeds, seconds: float) -> tuple[list[float], float]:
        """A warm-up run, then at least two runs for about `seconds`: their times, and CPU time per run."""
        return self._pool.submit(_turn, feeds, seconds).result()

    def outputs(self, batches: list[Feeds], index: int) -> list[Array]:
        """The output number `index` of each batch."""
        return self._pool.submit(_outputs, batches, index).result()


def selected(only: Sequence[str]) -> list[str]:
    """The named contestants, or all, and always the base; those not installed are reported on standard error."""
    names = []
    for name, contestant in CONTESTANTS.items():
        if only and name not in (BASE, *only):
            continue
        if missing := contestant.missing():
            left_out(name, f"{', '.join(missing)} not installed. Install with: pip install 'intaglio[peers]'")
        else:
            names.append(name)
    if BASE not in names:
        sys.exit(1)
    return names


def prepared(names: Sequence[str], bundle: Path, folder: Path, texts: list[str]) -> dict[str, Path]:
    """Build the models of `names` in `folder`, or reuse existing ones; failures are reported on standard error.

    Ours is always rebuilt, since it is the one that changes.
    """
    models = {}
    for name in names:
        contestant = CONTESTANTS[name]
        target, record = folder / name, folder / f"{name}.path"
        if name == OURS or not record.exists():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            try:
                with step(f"{contestant.title}: making the model"), fresh_process() as pool:
                    model = pool.submit(_prepare, name, bundle, target, texts).result()
            except Exception as error:  # a peer can raise anything; the others go on
                left_out(name, str(error))
                continue
            record.write_text(str(model.resolve()), encoding="utf-8")
        models[name] = Path(record.read_text(encoding="utf-8"))
    return models


@contextlib.contextmanager
def opened(models: dict[str, Path], bundle: Path, settings: Settings) -> Iterator[dict[str, Process]]:
    """Open every model in its own process; failures are reported on standard error."""
    with contextlib.ExitStack() as stack:
        processes = {}
        for name, model in models.items():
            pool = stack.enter_context(fresh_process())
            try:
                processes[name] = Process(pool, name, model, bundle, settings)
            except Exception as error:  # a peer can raise anything; the others go on
                left_out(name, str(error))
        yield processes


def left_out(name: str, reason: str) -> None:
    """Report on standard error that a contestant does not run, and why."""
    print(f"{name} is left out: {' '.join(reason.split())}", file=sys.stderr)


def fresh_process() -> ProcessPoolExecutor:
    """A fresh, silent process that serves one call at a time."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_start)


def _start() -> None:
    """In the child: suppress the libraries' progress bars and hints, and end when the parent is killed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _prepare(name: str, bundle: Path, folder: Path, texts: list[str]) -> Path:
    return CONTESTANTS[name].prepare(Bundle.open(bundle), folder, texts)


_RUNNERS: list[Runner] = []  # in a child: its single model


def _open(name: str, model: Path, bundle: Path, settings: Settings) -> None:
    _RUNNERS.append(CONTESTANTS[name].open(model, Bundle.open(bundle), settings))


def _turn(feeds: Feeds, seconds: float) -> tuple[list[float], float]:
    (run,) = _RUNNERS
    run(feeds)
    times: list[float] = []
    cpu = time.process_time()
    while len(times) < 2 or sum(times) < seconds:
        start = time.perf_counter()
        run(feeds)
        times.append(time.perf_counter() - start)
    return times, (time.process_time() - cpu) / len(times)


def _outputs(batches: list[Feeds], index: int) -> list[Array]:
    (run,) = _RUNNERS
    return [run(feeds)[index] for feeds in batches]
