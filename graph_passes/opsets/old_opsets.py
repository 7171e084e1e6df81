"""Convert graphs of opset 1 to 10 by ONNX's own converter, and check that they still compute the same.

The converter does not know every operator, and some meant something else in their old versions. So the original and
the converted graph run in ONNX Runtime on generated inputs, and must return the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx import checker, version_converter

from intaglio.bundle.bundle import TensorSpec
from intaglio.bundle.model_file import save
from intaglio.errors import EngineError, GraphError, one_line
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine

WAY_OUT = "Re-export it with opset 11 or later."
RELATIVE = 1e-5  # to the largest magnitude of an output: the operators of another version may round otherwise
LENGTHS = (2, 1, 8, 32, 224)  # of symbolic axes, tried until the original runs
TRIALS = 2  # runs that are compared
OLDEST_IR, OPTIONAL_INPUTS_IR = 3, 4  # supported by the converter; before 4 every initializer is also an input


def convert(model: ir.Model, version: int) -> ir.Model:
    """Return a copy of the graph in opset `version`. Raises `GraphError` if the converter fails."""
    try:
        ir.external_data.load_to_model(model)
        proto = ir.serde.serialize_model(model)
        proto.ir_version = max(proto.ir_version, OLDEST_IR)
        converted = version_converter.convert_version(proto, version)
        converted.ir_version = max(converted.ir_version, OPTIONAL_INPUTS_IR)
        checker.check_model(converted)
        made = ir.serde.deserialize_model(converted)
    except Exception as error:  # the converter is in C++, and has no exception of its own
        reason = one_line(error, 200).rstrip(".")
        raise _refusal(model, f"ONNX's converter fails: {reason}") from error
    for value in [value for value in made.graph.inputs if value.is_initializer()]:
        made.graph.inputs.remove(value)
    return made


def check_equal(original: ir.Model, converted: ir.Model) -> None:
    """Run both graphs on generated inputs. Raises `GraphError` if they differ, or if the original does not run."""
    with scratch_directory("opset") as folder:
        save(original, folder / "original.onnx")
        save(converted, folder / "converted.onnx")
        compared, reason = 0, ""
        try:
            with OnnxRuntimeEngine(folder / "original.onnx", spinning=False) as old:
                for feeds in _trials(old.inputs):
                    try:
                        expected, again = old.run(feeds), old.run(feeds)
                    except EngineError as error:
                        reason = str(error)
                        continue
                    with OnnxRuntimeEngine(folder / "converted.onnx", spinning=False) as new:
                        _compare(original, new, feeds, expected, again)
                    compared += 1
                    if compared == TRIALS:
                        return
        except EngineError as error:
            reason = str(error)
    if not compared:
        reason = reason[:200].rstrip(".")
        raise _refusal(original, f"its conversion cannot be checked, as the original does not run: {reason}")


def _compare(
    original: ir.Model,
    new: OnnxRuntimeEngine,
    feeds: Mapping[str, Array],
    expected: Mapping[str, Array],
    again: Mapping[str, Array],
) -> None:
    try:
        found = new.run(feeds)
    except EngineError as error:
        raise _refusal(original, f"the graph converted by ONNX does not run: {str(error)[:200].rstrip('.')}") from error
    for name, array in expected.items():
        repeatable = _equal(again[name], array)
        same = found[name].dtype == array.dtype and found[name].shape == array.shape
        if not same or (repeatable and not _equal(found[name], array)):
            raise _refusal(original, f"the graph converted by ONNX computes another {name!r}")


def _equal(found: Array, expected: Array) -> bool:
    if not np.issubdtype(expected.dtype, np.floating):
        return bool(np.array_equal(found, expected))
    wanted = expected.astype(np.float64)
    largest = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
    return bool(np.allclose(found.astype(np.float64), wanted, rtol=0, atol=RELATIVE * largest, equal_nan=True))


def _trials(specs: Sequence[TensorSpec]) -> Iterator[dict[str, Array]]:
    """Generated inputs: symbolic axes of several lengths; numbers of both signs, from 0 to 1, and from 1 to 2."""
    generator = np.random.default_rng(0)
    for length in LENGTHS:
        for least in (None, 0, 1):
            yield {spec.name: _array(spec, length, least, generator) for spec in specs}


def _array(spec: TensorSpec, length: int, least: int | None, generator: np.random.Generator) -> Array:
    shape = [each if isinstance(each, int) else length for each in spec.shape]
    if spec.dtype == "str":
        return np.full(shape, "a", object)
    if np.issubdtype(np.dtype(spec.dtype), np.integer):
        return np.full(shape, least or 0, spec.dtype)  # they may be indices
    numbers = generator.normal(size=shape) if least is None else least + generator.random(shape)
    return numbers > 0.5 if spec.dtype == "bool" else numbers.astype(spec.dtype)


def _refusal(model: ir.Model, reason: str) -> GraphError:
    return GraphError(f"raise_opset: the graph has opset {model.opset_imports.get('')}, and {reason}. {WAY_OUT}")
