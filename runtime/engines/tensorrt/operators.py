"""Prepare a graph for TensorRT: our operators as plugins or as their bodies, and fixed axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir as ir

from intaglio.bundle.model_file import load, parse, save
from intaglio.bundle.plan_record import DEFAULT_PLAN, PlanOptions
from intaglio.errors import BuildError, EngineError, GraphError
from intaglio.plugins import OPS, custom_operators, ort
from intaglio.plugins import trt as plugins
from intaglio.plugins.cuda.compiler import Images, images_for
from intaglio.plugins.float_body import FloatBody
from intaglio.plugins.inlining import inline
from intaglio.plugins.packed_matmul.narrow_weights import widen_weights
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines.caches.quantized_cache import quantize_caches
from intaglio.runtime.engines.tensorrt.integers import has_int8_tables, widen
from intaglio.runtime.engines.tensorrt.library import STDERR, silent
from intaglio.runtime.engines.tensorrt.plan_options import is_portable, oldest_gpu
from intaglio.targets import TARGETS

BFLOAT16, BFLOAT16_FROM = ir.DataType.BFLOAT16, 80  # compute capability times ten


@contextmanager
def parsable(
    model: Path,
    trt: Any,
    sm: int,
    fixed: Mapping[str, int] | None = None,
    with_plugins: bool = True,
    plan: PlanOptions = DEFAULT_PLAN,
    cache_bits: int | None = None,
) -> Iterator[Path]:
    """Yield an ONNX file that the parser of `trt`, a module, supports for GPUs of `sm`: `model` itself, if possible.

    Otherwise it is a temporary copy, see `prepared`. It has plugin nodes for our operators, and the plugins are
    registered: in Python for TensorRT, and for TensorRT-RTX the one of our library. So it is for version-compatible
    engines of TensorRT: they hold their plugins as a library. Without `with_plugins` it has the operators' bodies in
    floating point. `cache_bits`: see `prepared`.
    """
    oldest = oldest_gpu(plan, sm)

    def replace(graph: ir.Model, needed: Sequence[str]) -> None:
        if not with_plugins:
            inline(graph, body=FloatBody)
        elif plan.version_compatible or trt.__name__ == TARGETS["tensorrt-rtx"].library:
            plugins.load_plugins_to_build(trt)
            plugins.use_kernel_plugins(graph, oldest, _later_gpus if is_portable(plan) else images_for)
        else:
            plugins.explicit(graph)
            with silent(STDERR):  # it warns that plugins in Python are experimental
                plugins.register(oldest, [OPS[name] for name in needed])

    with _saved(prepared(model, sm, fixed or {}, replace, cache_bits), model) as path:
        yield path


@contextmanager
def with_weights(
    model: Path, sm: int, fixed: Mapping[str, int], with_plugins: bool, cache_bits: int | None = None
) -> Iterator[Path]:
    """Yield an ONNX file with the constants of the one that `parsable` yields, under the same names.

    It is for an engine that was built without them, and needs neither TensorRT nor a compiler.
    """

    def replace(graph: ir.Model, _: Sequence[str]) -> None:
        if with_plugins:
            plugins.explicit(graph)
        else:
            inline(graph, body=FloatBody)

    with _saved(prepared(model, sm, fixed, replace, cache_bits), model) as path:
        yield path


@contextmanager
def _saved(graph: ir.Model | None, model: Path) -> Iterator[Path]:
    """Yield a temporary file with `graph`, or `model` where there is none."""
    if graph is None:
        yield model
        return
    with scratch_directory("parsable") as directory:
        save(graph, directory / model.name)
        yield directory / model.name


def plan_libraries(plan: PlanOptions) -> list[str]:
    """The libraries of plugins that an engine with our operators holds."""
    library = ort.library() if plan.version_compatible else None
    return [] if library is None else [str(library)]


def _later_gpus(folder: str, sm: int) -> Images:
    """The compiled kernels of an operator for GPUs of `sm` and all later ones: PTX alone."""
    return Images(b"", images_for(folder, sm).ptx)


def prepared(
    model: Path,
    sm: int,
    fixed: Mapping[str, int],
    replace: Callable[[ir.Model, Sequence[str]], object],
    cache_bits: int | None = None,
) -> ir.Model | None:
    """The graph of an ONNX file as TensorRT's parser supports it for GPUs of `sm`, or None where nothing changes.

    `fixed`: the lengths of symbolic axes to fix, such as the capacity of a cache: TensorRT writes only to a cache whose
    length is stated in the graph. `replace` gets the graph and the names of our operators in it, if any, and puts
    others in their places. Integer operators that TensorRT does not support are rewritten, see `widen`, and weights of
    bfloat16 are float32 for a GPU without it. `cache_bits`: of a decoder's caches, see `quantize_caches`, which raises
    `UsageError`. Raises `BuildError` for an operator that this version does not know or has no kernel for,
    `MissingExtraError` without the CUDA compiler or TensorRT.
    """
    proto = parse(model)
    if cache_bits is not None:
        quantize_caches(proto, cache_bits, words=True)
    needed = custom_operators(proto.graph.node)
    lacking = sm < BFLOAT16_FROM and any(each.data_type == BFLOAT16 for each in proto.graph.initializer)
    if not needed and not fixed and not lacking and not has_int8_tables(proto):
        return None
    graph = load(model, message=proto)
    _fix(graph, fixed)
    if needed:
        try:
            replace(graph, needed)
        except (EngineError, GraphError) as error:
            raise BuildError(f"TensorRT: {error}") from error
    widen(graph)
    if lacking:
        widen_weights(graph, [BFLOAT16])
    return graph


def _fix(model: ir.Model, lengths: Mapping[str, int]) -> None:
    """Fix the symbolic axes named in `lengths`, in the inputs, the outputs and all values between them."""
    graph = model.graph
    for value in (*graph.inputs, *graph.outputs, *(value for node in graph for value in node.outputs)):
        if value.shape is not None:
            stated = [length if isinstance(length, int) else length.value for length in value.shape]
            value.shape = ir.Shape([lengths.get(str(length), length) for length in stated])
