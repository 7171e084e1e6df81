"""Register the operators with TensorRT as quickly deployable plugins, which need no Python once an engine is built.

For each selection of an operator's optional inputs (see `explicit`) TensorRT gets two functions: one returns the
outputs' dtypes and shapes, from the spec's `outputs`, and one returns the kernel: its name, PTX, grid and block, and
the scalar parameters, from the operator's `launch.py`. Lengths that are unknown while TensorRT builds are its
symbolic expressions, which the engine evaluates in each run; float attributes have become integers by then. TensorRT
passes a kernel the inputs, the scalars, and the outputs, in this order; all scalars are int32, the widest it has.

For operators with `alternatives` in their `launch.py`, a third function returns a node's dtypes and one tactic for each
of its launches, numbered from 1: TensorRT measures them, and the fastest is in the engine. Without tactics TensorRT
asks for number 0, which is our first launch. Every TensorRT with ahead-of-time plugins has such functions.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import GenericAlias
from typing import Any

from intaglio import extras
from intaglio.errors import EngineError, one_line
from intaglio.files.hashes import cache_directory
from intaglio.plugins.contract import Operator
from intaglio.plugins.cuda.compiler import SMS, compile_kernel, compile_kernels, newest_for, only
from intaglio.plugins.cuda.driver import check_driver
from intaglio.plugins.cuda.launching.expressions import length
from intaglio.plugins.cuda.launching.geometry import Launch, Length, Tensor, at_least_1
from intaglio.plugins.cuda.launching.launches import alternatives, has_alternatives, launch
from intaglio.plugins.cuda.launching.output_shapes import output_shapes
from intaglio.plugins.registry import DOMAIN
from intaglio.plugins.trt.explicit import forms, plugged, plugin_dtype, plugin_name

OLDEST = "10.9"  # the first with ahead-of-time plugins

# NumPy's name of a plugin's element type -> the member of `tensorrt.DataType`.
DTYPES = {"int8": "INT8", "int32": "INT32", "float32": "FLOAT", "float16": "HALF"}
# -> the name in `tensorrt.plugin.AutoTuneCombination`.
TUNED_DTYPES = {**DTYPES, "float32": "FP32", "float16": "FP16"}


def register(sm: int, operators: Iterable[Operator] = ()) -> None:
    """Register our operators with TensorRT's parser, with kernels for `sm` (compute capability times ten).

    Later calls only set the GPU of the builds that follow. The kernels of `operators` are compiled here, so that errors
    are raised now and not inside a TensorRT build. Raises `MissingExtraError` if TensorRT or NVRTC is not installed,
    `EngineError` if TensorRT, the driver or the GPU is too old, or a kernel does not compile.
    """
    newest = newest_for(sm)
    if newest is None:
        raise EngineError(f"sm_{sm}: expected sm_{min(SMS)} or newer, which the kernels need. Use another GPU.")
    plugins = _plugins()
    plugins.sm = newest
    check_driver(plugins.sm)
    compile_kernels({operator.folder: None for operator in operators}, plugins.sm)


@cache
def _plugins() -> Plugins:
    """All operators, registered once per process: TensorRT rejects a second registration."""
    plugins = Plugins(*_library())
    for operator in plugged():
        for form in forms(operator):
            plugins.add(operator, form)
    return plugins


def _library() -> tuple[Any, Any]:
    """The modules `tensorrt` and `tensorrt.plugin`. Raises `MissingExtraError` and `EngineError`."""
    trt = extras.load("tensorrt")
    try:
        plugin = importlib.import_module("tensorrt.plugin")
        getattr(plugin, "aot_impl")  # noqa: B009
    except (ImportError, AttributeError) as error:
        raise EngineError(
            f"tensorrt {trt.__version__}: no ahead-of-time plugins ({one_line(error, 200)}), expected {OLDEST} or "
            "newer. Update with: pip install --upgrade tensorrt"
        ) from error
    return trt, plugin


class Plugins:
    """The callbacks of a TensorRT build: the descriptions and launches of all operators, for one GPU at a time.

    `trt` and `api` are the modules `tensorrt` and `tensorrt.plugin`. TensorRT reads the functions' signatures, so
    each gets one that lists its operator's inputs and attributes.
    """

    def __init__(self, trt: Any, api: Any) -> None:
        self.sm = min(SMS)
        self._trt, self._api = trt, api
        self._names = {getattr(trt.DataType, member): name for name, member in DTYPES.items()}

    def add(self, operator: Operator, form: tuple[int, ...]) -> None:
        """Register one operator with the inputs at these positions."""
        tensor = self._api.TensorDesc
        tensors = {operator.inputs[index].name: tensor for index in form}
        attributes: dict[str, Any] = {attribute.name: attribute.kind for attribute in operator.attributes}
        outputs = GenericAlias(tuple, (tensor,) * len(operator.signature.outputs))

        def describe(*descriptions: Any, **values: Any) -> tuple[Any, ...]:
            return self._describe(operator, _placed(operator, form, descriptions), _complete(operator, values))

        def read(given: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
            """The inputs' descriptions and the attributes, which TensorRT passes in this order."""
            values = dict(zip(attributes, given[len(form) :], strict=True))
            return _placed(operator, form, given[: len(form)]), _complete(operator, values)

        def tune(*arguments: Any) -> list[Any]:
            *given, outputs = arguments
            return self._combinations(operator, *read(given), outputs)

        def implement(*arguments: Any) -> tuple[str, bytes, Any, Any]:
            *given, _, tactic = arguments
            return self._implement(operator, *read(given), tactic)

        combinations = GenericAlias(list, (self._api.AutoTuneCombination,))
        kernel = GenericAlias(tuple, (str, bytes, self._api.KernelLaunchParams, self._api.SymIntExprs))
        name = f"{DOMAIN}::{plugin_name(operator, form)}"
        called = {**tensors, **attributes, "outputs": outputs}
        self._api.register(name)(_with_signature(describe, {**tensors, **attributes}, outputs))
        if has_alternatives(operator.folder):
            self._api.autotune(name)(_with_signature(tune, called, combinations))
        self._api.aot_impl(name)(_with_signature(implement, {**called, "tactic": int}, kernel))

    def _describe(
        self, operator: Operator, descriptions: Sequence[Any], attributes: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Dtype and shape of every output."""
        shapes = _lengths(descriptions)
        pairs = zip(operator.inputs, descriptions, strict=True)
        dtypes = {spec.name: each.dtype for spec, each in pairs if each is not None}
        outputs = operator.outputs([None if each is None else (None,) * len(each) for each in shapes], attributes)
        return tuple(
            self._api.from_shape_expr(
                shape,
                dtypes[output.like] if output.like else getattr(self._trt.DataType, DTYPES[plugin_dtype(output.dtype)]),
            )
            for output, shape in zip(outputs, output_shapes(operator, shapes, attributes), strict=True)
        )

    def _combinations(
        self, operator: Operator, descriptions: Sequence[Any], attributes: Mapping[str, Any], outputs: Sequence[Any]
    ) -> list[Any]:
        """The node's dtypes, which are the only ones that it supports, with a tactic for each of its launches.

        Empty for a node with one launch, for which TensorRT takes these dtypes itself. TensorRT destroys its symbolic
        expressions between calls, so an unknown length, -1 here, is a symbol of ours: only the launches' number counts.
        """
        lengths = [
            None if each is None else [length(index, axis) if n < 0 else n for axis, n in enumerate(each.shape)]
            for index, each in enumerate(descriptions)
        ]
        count = len(_launches(operator, self._tensors(descriptions, lengths), attributes, self.sm))
        if count == 1:
            return []
        dtypes = [TUNED_DTYPES[self._names[each.dtype]] for each in (*descriptions, *outputs) if each is not None]
        return [self._api.AutoTuneCombination(", ".join(dtypes), "LINEAR", list(range(1, count + 1)))]

    def _implement(
        self, operator: Operator, descriptions: Sequence[Any], attributes: Mapping[str, Any], tactic: int
    ) -> tuple[str, bytes, Any, Any]:
        """Name and PTX of the kernel, how it is launched, and its scalar parameters.

        Raises `EngineError` for a tactic that the node does not have.
        """
        tensors = self._tensors(descriptions, _lengths(descriptions))
        launches = _launches(operator, tensors, attributes, self.sm)
        if not 0 <= tactic <= len(launches):
            raise EngineError(
                f"{operator.name}: tactic {tactic}, expected 0 to {len(launches)}. Delete TensorRT's timings, *.timing "
                f"in {cache_directory()}, and build again."
            )
        made = launches[max(tactic, 1) - 1]
        ptx = only(compile_kernel(operator.folder, self.sm).ptx, made.entry)
        return made.entry, ptx, *self._parameters(made)

    def _tensors(self, descriptions: Sequence[Any], lengths: Sequence[Sequence[Length] | None]) -> list[Tensor | None]:
        """The inputs with these lengths, None for one left out."""
        return [
            None if shape is None else Tensor(shape, self._names[each.dtype])
            for each, shape in zip(descriptions, lengths, strict=True)
        ]

    def _parameters(self, made: Launch) -> tuple[Any, Any]:
        scalars = self._api.SymIntExprs(len(made.scalars))
        for index, scalar in enumerate(made.scalars):
            scalars[index] = self._api.SymInt32(scalar)
        grid = map(at_least_1, made.grid)  # CUDA launches no empty grid; the kernels write nothing for the block more
        return self._api.KernelLaunchParams(*grid, *made.block, made.shared_bytes), scalars


def _launches(
    operator: Operator, tensors: Sequence[Tensor | None], attributes: Mapping[str, Any], sm: int
) -> list[Launch]:
    """The launches of a node, in the order of its tactics."""
    given = operator.folder, tensors, attributes, sm
    return [launch(*given), *alternatives(*given)]


def _placed(operator: Operator, form: tuple[int, ...], descriptions: Sequence[Any]) -> list[Any]:
    """A description for every input of the operator, None for one left out."""
    placed: list[Any] = [None] * len(operator.inputs)
    for index, description in zip(form, descriptions, strict=True):
        placed[index] = description
    return placed


def _lengths(descriptions: Sequence[Any]) -> list[list[Any] | None]:
    """The lengths of every input, None for one left out."""
    return [None if each is None else list(map(_length, each.shape_expr)) for each in descriptions]


def _length(expression: Any) -> Any:
    """A length of a tensor: a number if TensorRT knows it, else its symbolic expression."""
    known = not expression.is_fake and expression.is_constant
    return expression.constant_value() if known else expression


def _complete(operator: Operator, values: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes in the spec's form; TensorRT's parser may pass a string with its terminating zero."""
    given = {name: value.rstrip("\0") if isinstance(value, str) else value for name, value in values.items()}
    return operator.complete(given)


def _with_signature(function: Callable[..., Any], annotations: Mapping[str, Any], returned: Any) -> Callable[..., Any]:
    """`function` with a signature of positional parameters."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind, annotation=given) for name, given in annotations.items()]
    function.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
    return function
