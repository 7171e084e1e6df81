"""The models with which ONNX tests runtimes, each exported, compressed, opened and run."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case import node
from onnx.backend.test.loader import load_model_tests

from intaglio.bundle.bundle import Bundle
from intaglio.errors import IntaglioError
from intaglio.exporters import export
from intaglio.graph_passes import compress

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
FLOAT16 = 5e-3  # relative to the largest magnitude of an output
EXACT = 1e-5
LARGEST = 65504.0


@dataclass(frozen=True)
class Case:
    """One model, and its inputs in the order of the graph's."""

    name: str
    model: onnx.ModelProto
    inputs: tuple[Any, ...]  # arrays, lists of arrays, or None


@cache
def all_cases() -> dict[str, Any]:
    """Every test of the installed `onnx` package that has a model, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {f"{kind}/{test.name}": test for kind in KINDS for test in load_model_tests(kind=kind)}


@cache
def cases_of(module: str) -> dict[str, Any]:
    """The tests of one operator's module, or one of the other KINDS, which load faster."""
    if module in KINDS:
        return {f"{module}/{test.name}": test for test in load_model_tests(kind=module)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(f"onnx.backend.test.case.node.{module}")
    return {f"node/{test.name}": test for test in node._NodeTestCases}


def read(name: str, module: str | None = None) -> Case:
    """The test `name` (of `module`), with the inputs of its first data set."""
    test = (all_cases() if module is None else cases_of(module))[name]
    if test.model is not None:
        return Case(name, test.model, tuple(map(_array, test.data_sets[0][0])))
    folder = Path(test.model_dir)
    model = onnx.load_model(folder / "model.onnx")
    initialized = {tensor.name for tensor in model.graph.initializer}
    values = [value for value in model.graph.input if value.name not in initialized]
    files = [folder / "test_data_set_0" / f"input_{index}.pb" for index in range(len(values))]
    return Case(name, model, tuple(_value(path, kind.type) for path, kind in zip(files, values, strict=True)))


def _array(value: Any) -> Any:
    """A NumPy scalar as an array."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def _value(path: Path, kind: onnx.TypeProto) -> Any:
    if kind.HasField("sequence_type"):
        sequence = onnx.SequenceProto()
        sequence.ParseFromString(path.read_bytes())
        return onnx.numpy_helper.to_list(sequence)
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return onnx.numpy_helper.to_array(tensor)


def open_session(model: str | bytes) -> Any:
    """ONNX Runtime with one thread and without messages."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(session: Any, inputs: tuple[Any, ...], single: bool = True) -> list[Any]:
    """The outputs for `inputs`; float32 arrays become float16 where the graph expects it."""
    feeds = {}
    for value, given in zip(session.get_inputs(), inputs, strict=False):
        feeds[value.name] = _as(given, np.float16) if "float16" in value.type and not single else given
    return list(session.run(None, feeds))


def _as(value: Any, dtype: Any) -> Any:
    if isinstance(value, list):
        return [_as(item, dtype) for item in value]
    is_float = isinstance(value, np.ndarray) and value.dtype in (np.float16, np.float32)
    return value.astype(dtype) if is_float else value


def _rounded(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs rounded to float16, in float32."""
    with np.errstate(over="ignore"):
        return tuple(_as(_as(value, np.float16), np.float32) for value in inputs)


def outcome(case: Case, recipe: str, folder: Path) -> tuple[str, str]:
    """The outcome of a model under a recipe, and the details.

    "not run"    ONNX Runtime does not open or run the model itself
    "equal"      the bundle computes the same
    "refused"    one of intaglio's own errors
    "different"  the bundle computes something else
    "not opened" the bundle cannot be opened
    """
    try:
        session = open_session(case.model.SerializeToString())
        expected, again = run(session, case.inputs), run(session, case.inputs)
    except Exception as error:
        return "not run", str(error)
    source = folder / "model.onnx"
    onnx.save_model(case.model, source)
    try:
        export(source, folder / "bundle", force=True)
        compress(folder / "bundle", folder / "compressed", recipe, force=True)
    except IntaglioError as error:
        return "refused", str(error)
    finally:
        source.unlink()
    try:
        opened = Bundle.open(folder / "compressed")
        found = run(open_session(str(opened.model_path)), case.inputs, single=False)
    except Exception as error:
        return "not opened", str(error)
    random = differences(again, expected, EXACT) is not None
    bound = FLOAT16 if recipe == "float16" else EXACT
    problem = differences(found, expected, np.inf if random else bound)
    if problem and recipe == "float16":
        problem = differences(found, run(session, _rounded(case.inputs)), bound)  # the effect of rounding its inputs
    return ("equal", "") if problem is None else ("different", problem)


def differences(found: Any, expected: Any, bound: float) -> str | None:
    """The first difference, where float16 counts as float32; None if there is none."""
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return f"got {type(found).__name__}, expected a list of {len(expected)}"
        parts = (differences(mine, own, bound) for mine, own in zip(found, expected, strict=True))
        return next((part for part in parts if part is not None), None)
    if isinstance(expected, Mapping):
        return None if dict(found) == dict(expected) else f"got {found}, expected {expected}"
    if expected is None or found is None:
        return None if found is expected else f"got {found}, expected {expected}"
    return _difference(np.asarray(found), np.asarray(expected), bound)


def _difference(found: Any, expected: Any, bound: float) -> str | None:
    floats = expected.dtype == np.float32 and found.dtype == np.float16
    if found.shape != expected.shape or (found.dtype != expected.dtype and not floats):
        return f"got {found.dtype} {found.shape}, expected {expected.dtype} {expected.shape}"
    if expected.dtype.kind not in "fc":
        step = 1 if bound == FLOAT16 and expected.dtype in (np.int8, np.uint8) else 0  # a quantised value at a boundary
        close = step and np.abs(found.astype(int) - expected.astype(int)).max(initial=0) <= step
        same = close or bound == np.inf or np.array_equal(found, expected)
        return None if same else f"got {found.reshape(-1)[:4]}, expected {expected.reshape(-1)[:4]}"
    with np.errstate(all="ignore"):
        wide, wanted = found.astype(np.complex128), expected.astype(np.complex128)
        if floats:  # the limit of float16
            wide, wanted = (np.clip(array.real, -LARGEST, LARGEST).astype(np.complex128) for array in (wide, wanted))
        finite = np.isfinite(wanted) & np.isfinite(wide)
        largest = float(np.abs(wanted[finite]).max(initial=0.0))
        same_kind = np.array_equal(np.isnan(wide), np.isnan(wanted))
        error = float(np.abs(wide[finite] - wanted[finite]).max(initial=0.0))
    if bound != np.inf and (not same_kind or not error <= bound * max(largest, 1e-6)):
        return f"off by {error:.3g} of {largest:.3g}"
    return None
