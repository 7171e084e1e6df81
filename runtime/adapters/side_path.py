"""Add the changes of adapters to a decoder's graph, beside its products: its weights stay unchanged, also quantised.

For each product y = x·W of a changed module, with the matrices of all adapters stacked:

    y + scale · factor[adapter] · x · A[adapter]ᵀ · B[adapter]

    adapter int32 [batch], scale float32 [batch, 1, 1]: inputs, of each row the number of its adapter, whose matrices
    are zero for 0, and a factor that the request chooses

The graph is changed when it is opened, and not when it is exported: so adapters come and go without another bundle, and
what was compressed stays valid for all of them. On a CPU it is one LowRankMatMul; elsewhere standard operators, which
copy the matrices of each row's adapter. The former keeps matrices in float16 where that changes no number, and beside
products that round their activations to 16 bits: each number is then rounded to 11 bits, and small ones to a multiple
of 2^-38 of their matrix's largest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intaglio.bundle.manifest import PassRecord, TensorSpec
from intaglio.errors import BundleError, SourceError
from intaglio.plugins import CUDA_DOMAIN
from intaglio.plugins.registry import DOMAIN, PACKED
from intaglio.runtime.adapters.adapter import MERGE
from intaglio.runtime.adapters.adapters import ADAPTER, ADAPTER_SCALE, Adapters, Stacked

if TYPE_CHECKING:
    import onnx

Array = npt.NDArray[Any]

# Passes after which each product has the same input and result as the module of the checkpoint, but for rounding.
KEPT = frozenset({
    "raise_opset", "fold_constants", "canonicalize", "calibrate", "float16", "lut", "lut_sparse", "mixed", "rtn",
    "gptq", "int8_absmax", "int8_zeropoint", "integer_embedding", "quantize_weights", "narrow_weights",
    "prune_magnitude",
})  # fmt: skip
# A product's, by its module: codes of a checkpoint are called <module>.weight.packed, those of a pass <module>.packed.
WEIGHT = re.compile(r"(?P<module>.+?)\.((weight\.)?packed|weight(_transposed)?(_int8)?)")
FLOAT16 = 10  # of onnx.TensorProto, which is not loaded here
MOST_POWER = 40  # of two, by which a matrix is multiplied, so that no factor is too small for float32
NOWHERE = "adapters"  # the file that does not exist
WRAPPERS = ("model", "transformer", "language_model")  # at the beginning of a path, which some classes leave out


def add_side_paths(
    model: onnx.ModelProto,
    adapters: Adapters,
    passes: Iterable[PassRecord],
    path: Path,
    by_our_kernel: bool = False,
) -> dict[str, Array]:
    """Add `adapters` to the graph of `path`, to which `passes` were applied; return their matrices by the names there.

    `by_our_kernel`: by our operator, and not by standard ones. The matrices are external data of a file that does not
    exist, as a message holds no more than 2 GiB.
    Raises `BundleError` for a graph whose products differ from the checkpoint's, `SourceError` for a module that the
    graph has no product of, or one of another size.
    """
    if changing := next((each.name for each in passes if each.name not in KEPT and each.counts), None):
        raise BundleError(
            f"{path}: the pass {changing} changed what products read, expected only passes that keep it, such as those "
            f"of the recipes rtn, gptq and lut. Compress with one of them. Or {MERGE[0].lower()}{MERGE[1:]}"
        )
    products = _Products(model, f"adapters {', '.join(adapters.names)}")
    added = {}
    for module, changes in adapters.modules.items():
        product = products.find(module, changes)
        if product.node.output[0] in added:
            raise SourceError(
                f"adapters {', '.join(adapters.names)}: {module[:200]} is a product that another name of it changes "
                "too. Save the adapters from the same class of model."
            )
        added[product.node.output[0]] = (product, changes)
    matrices: dict[str, Array] = {}
    dtypes = set() if by_our_kernel else {product.dtype for product, _ in added.values()}
    nodes = [_cast_scale(dtype) for dtype in dtypes]
    for node in model.graph.node:
        nodes.append(node)
        if node.output[:1] and node.output[0] in added:
            product, changes = added[node.output[0]]
            _check_range(adapters, product, changes)
            nodes += (_our_operator if by_our_kernel else _standard_operators)(product, changes, matrices)
    del model.graph.node[:]  # the kept nodes stay alive
    model.graph.node.extend(nodes)
    model.graph.input.extend(map(_input, (ADAPTER, ADAPTER_SCALE)))
    model.graph.initializer.extend(_external(name, array) for name, array in matrices.items())
    return matrices


class Product(NamedTuple):
    """A product y = x·W of a graph."""

    node: onnx.NodeProto
    x: str  # the input of the module, which the node may read in another order
    dtype: int  # of x

    @property
    def rounds(self) -> bool:
        """Whether it computes with its activations rounded to 16 bits or fewer."""
        return self.dtype == FLOAT16 or any(
            each.name == "activation_bits" and each.i <= 16 for each in self.node.attribute
        )


class _Products:
    """The products of a graph, by the modules of the checkpoint whose weights they have."""

    def __init__(self, model: onnx.ModelProto, which: str):
        """`which`: the adapters, for messages."""
        graph = model.graph
        self._which = which
        self._values = {each.name: each.type.tensor_type for each in (*graph.value_info, *graph.input, *graph.output)}
        self._weights = {each.name: each.dims for each in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output}
        self._nodes: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            if found := WEIGHT.fullmatch(self._weight(node)):
                self._nodes.setdefault(found["module"], []).append(node)

    def _weight(self, node: onnx.NodeProto) -> str:
        """The name of the weight that a node multiplies by; empty if it is no product."""
        if node.op_type not in (*(("MatMul",) if node.domain == "" else ()), *PACKED):
            return ""
        weight: str = _inputs(node)[1]
        maker = self._makers.get(weight)
        return maker.input[0] if maker is not None and maker.op_type in ("DequantizeLinear", "Cast") else weight

    def find(self, module: str, changes: Stacked) -> Product:
        """The product of a module. Raises `SourceError` where there is none that `changes` fit."""
        nodes = self._nodes.get(module) or [
            node for name, nodes in self._nodes.items() if _bare(name) == _bare(module) for node in nodes
        ]
        if len(nodes) != 1:
            raise SourceError(
                f"{self._which}: the graph has {len(nodes) or 'no'} products with the weight of {module[:200]}, "
                f"expected 1. {MERGE}"
            )
        (node,) = nodes
        inputs, outputs = self._sizes(node)
        if (inputs, outputs) != changes.shape:
            raise SourceError(
                f"{self._which}: {module} has {changes.shape[0]} inputs and {changes.shape[1]} outputs, the model's "
                f"has {inputs} and {outputs}. Give adapters of this model."
            )
        x = _inputs(node)[0]
        maker = self._makers.get(x)
        if maker is not None and maker.op_type == "Gather" and maker.input[1].endswith(".order"):
            x = maker.input[0]  # the weight's columns are sorted by their groups
        value = self._values.get(x)
        axes = [] if value is None else [each.dim_param or each.dim_value for each in value.shape.dim]
        if value is None or len(axes) != 3 or axes[0] != ADAPTER.shape[0]:
            shape = ", ".join(map(str, axes)) or "unknown"
            raise SourceError(
                f"{self._which}: the input of {module[:200]} is [{shape}], expected [batch, tokens, {inputs}], so that "
                f"each row has one adapter. {MERGE}"
            )
        return Product(node, x, value.elem_type)

    def _sizes(self, node: onnx.NodeProto) -> tuple[int, int]:
        """Inputs and outputs of a product."""
        inputs, outputs = (*self._weights[self._weight(node)], 0, 0)[:2]
        if node.op_type in PACKED:
            return next(each.i for each in node.attribute if each.name == "K"), inputs
        return inputs, outputs


def _our_operator(product: Product, changes: Stacked, matrices: dict[str, Array]) -> list[onnx.NodeProto]:
    """The node of a side path, whose matrices are added to `matrices`; the product's result gets another name."""
    import onnx

    y = product.node.output[0]
    first, second, factor = changes.first, changes.second, changes.factor
    shorter = _in_float16(first), _in_float16(second)
    if product.rounds or all(exact for _, _, exact in shorter):
        (first, first_power, _), (second, second_power, _) = shorter
        factor = np.ldexp(factor, -first_power - second_power)
    names = [f"{y}.lora_A", f"{y}.lora_B", f"{y}.lora_factor"]
    matrices.update(zip(names, (first, second, factor.astype(np.float32)), strict=True))
    inputs = [product.x, *names, ADAPTER.name, ADAPTER_SCALE.name, f"{y}.base"]
    product.node.output[0] = f"{y}.base"
    return [onnx.helper.make_node("LowRankMatMul", inputs, [y], f"{y}.lora/LowRankMatMul", domain=DOMAIN)]


def _standard_operators(product: Product, changes: Stacked, matrices: dict[str, Array]) -> list[onnx.NodeProto]:
    """The same in the operators of its function body."""
    import onnx

    y, nodes = product.node.output[0], list[onnx.NodeProto]()

    def write(op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"{y}.lora.{len(nodes)}/{op_type}"
        nodes.append(onnx.helper.make_node(op_type, inputs, [name], name, None, None, None, **attributes))
        return name

    dtype = onnx.helper.tensor_dtype_to_np_dtype(product.dtype)
    names = f"{y}.lora_A", f"{y}.lora_B"
    matrices.update(zip(names, (changes.first.astype(dtype), _scaled(changes).astype(dtype)), strict=True))
    first, second = (write("Gather", name, ADAPTER.name, axis=0) for name in names)
    hidden = write("MatMul", product.x, write("Transpose", first, perm=[0, 2, 1]))
    value = write("MatMul", write("Mul", hidden, _scale(product.dtype)), second)
    product.node.output[0] = f"{y}.base"
    return [*nodes, onnx.helper.make_node("Add", [f"{y}.base", value], [y], f"{y}.lora/Add")]


def _scaled(changes: Stacked) -> Array:
    """The second matrices, times their factors."""
    scaled: Array = changes.second * changes.factor[:, None, None]
    return scaled


def _in_float16(matrices: Array) -> tuple[Array, Array, bool]:
    """float32 [adapters, rank, width] in float16, each matrix times the power of two that it is returned with.

    Powers [adapters] let the largest number of a matrix have float16's largest exponent. The last is whether no number
    was rounded.
    """
    _, exponents = np.frexp(np.abs(matrices).max((1, 2)))
    powers = np.minimum(15 - exponents, MOST_POWER)
    scaled = np.ldexp(matrices, powers[:, None, None])
    rounded = scaled.astype(np.float16)
    return rounded, powers, bool((rounded == scaled).all())


def _scale(dtype: int) -> str:
    """The name of the rows' factors in the dtype of products."""
    return f"{ADAPTER_SCALE.name}.{dtype}"


def _cast_scale(dtype: int) -> onnx.NodeProto:
    import onnx

    name = _scale(dtype)
    return onnx.helper.make_node("Cast", [ADAPTER_SCALE.name], [name], f"{name}/Cast", to=dtype)


def _check_range(adapters: Adapters, product: Product, changes: Stacked) -> None:
    """Raise `SourceError` for an adapter that overflows in the dtype of the graph: it would spoil other rows too."""
    import onnx

    dtype = onnx.helper.tensor_dtype_to_np_dtype(product.dtype)
    for number, name in enumerate(adapters.names, 1):
        with np.errstate(over="ignore"):
            finite = all(np.isfinite(each[number].astype(dtype)).all() for each in (changes.first, _scaled(changes)))
        if not finite:
            raise SourceError(f"adapter {name}: its numbers overflow in {dtype}, the model's dtype. {MERGE}")


def _inputs(node: onnx.NodeProto) -> Sequence[str]:
    """The inputs of a product: with a CUDA kernel, two forms of that come first (plugins/ort/cuda_nodes.py)."""
    return node.input[2:] if node.domain == CUDA_DOMAIN else node.input


def _external(name: str, array: Array) -> onnx.TensorProto:
    import onnx

    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", NOWHERE), ("offset", 0), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _bare(path: str) -> str:
    """The path without the parts at its beginning that some classes leave out."""
    first, _, rest = path.partition(".")
    return _bare(rest) if rest and first in WRAPPERS else path


def _input(spec: TensorSpec) -> onnx.ValueInfoProto:
    import onnx

    dtype = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    return onnx.helper.make_tensor_value_info(spec.name, dtype, spec.shape)
