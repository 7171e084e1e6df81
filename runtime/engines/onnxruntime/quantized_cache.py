"""Caches of 8 or 4 bits: a decoder's graph is changed when ONNX Runtime opens it, to write and read slots of bytes.

QuantizeCache turns new keys and values into slots, TensorScatter writes those as it writes floats, and CachedAttention
reads them. plugins/quantize_cache/slots.py describes their bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intaglio.errors import UsageError
from intaglio.plugins import ort as kernels
from intaglio.plugins.quantize_cache.slots import slot_bytes
from intaglio.plugins.registry import DOMAIN
from intaglio.runtime.engines.onnxruntime.cached_attention import FLOAT, OPERATOR, QUANTIZE
from intaglio.runtime.engines.onnxruntime.custom_operators import COMPILE
from intaglio.runtime.engines.onnxruntime.partial_graph import all_nodes
from intaglio.runtime.engines.onnxruntime.session_operators import import_our_domain

if TYPE_CHECKING:
    import onnx

# Option -> the bits of keys and of values. Keys stay in 8: in 4 they cost 4 % of perplexity and more, some models 70 %.
CACHE_BITS = {8: (8, 8), 4: (8, 4)}

UINT8, INT = 2, 2  # of onnx.TensorProto, and of onnx.AttributeProto, which are not loaded here
KEY, VALUE = 1, 2  # inputs of CachedAttention
FIX = "Leave out --cache-bits."


def quantize_caches(model: onnx.ModelProto, bits: int) -> None:
    """Let the caches hold slots of `bits`, one of `CACHE_BITS`, after `attend_by_our_kernel`.

    The caches' inputs and outputs become uint8 [batch, heads, capacity, bytes of a slot]. Raises `UsageError` if a
    cache is not of float32, if a node reads one that can't read slots, and where the kernels are not compiled.
    """
    if bits not in CACHE_BITS:
        raise UsageError(f"--cache-bits {bits}: expected one of {', '.join(map(str, CACHE_BITS))}.")
    if QUANTIZE not in kernels.operators():
        raise UsageError(
            f"--cache-bits {bits}: needs compiled kernels, and intaglio was installed without a C++ compiler. {COMPILE}"
        )
    graph, of_option = model.graph, dict(zip((KEY, VALUE), CACHE_BITS[bits], strict=True))
    inputs = {value.name: value for value in graph.input}
    writers = {
        node.input[0]: node for node in graph.node if node.op_type == "TensorScatter" and node.input[0] in inputs
    }
    if not writers:
        raise UsageError(f"--cache-bits {bits}: the graph writes no cache. {FIX}")
    caches = {name: name for name in writers} | {node.output[0]: name for name, node in writers.items()}
    places = _places(caches, graph, bits)
    depths = {name: _depth(inputs[name], bits) for name in writers}
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.name in caches:
            cache = caches[value.name]
            kind = value.type.tensor_type
            kind.elem_type = UINT8
            kind.shape.dim[-1].dim_value = slot_bytes(depths[cache], of_option[places[cache]])
    for node in (each for each in all_nodes(graph.node) if each.op_type == OPERATOR):
        settings = ("key_bits", "value_bits", "value_depth")
        for name, number in zip(settings, (*CACHE_BITS[bits], depths[caches[node.input[VALUE]]]), strict=True):
            node.attribute.add(name=name, type=INT, i=number)
    nodes = []
    for node in graph.node:
        if node.op_type == "TensorScatter" and node.input[0] in writers:
            slots = f"{node.input[0]}.new_slots"
            quantize = type(node)(op_type=QUANTIZE, domain=DOMAIN, name=slots, input=[node.input[1]], output=[slots])
            quantize.attribute.add(name="bits", type=INT, i=of_option[places[node.input[0]]])
            nodes.append(quantize)
            node.input[1] = slots
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    import_our_domain(model)


def _places(caches: dict[str, str], graph: onnx.GraphProto, bits: int) -> dict[str, int]:
    """Cache -> the input of CachedAttention that reads it, `KEY` or `VALUE`; nothing else may read one.

    `caches`: the names of each cache's buffer, before and after new slots are written -> the cache.
    """
    found = dict.fromkeys(caches.values(), KEY)  # also of one that nothing reads
    for node in all_nodes(graph.node):
        for place, name in enumerate(node.input):
            if name not in caches or (node.op_type == "TensorScatter" and place == 0) or _reads_leading_axes(node):
                continue
            if node.op_type != OPERATOR:
                raise UsageError(
                    f"--cache-bits {bits}: {caches[name]} is read by the node {node.name} ({node.op_type}), expected "
                    f"attention with a scale and a mask alone. {FIX}"
                )
            found[caches[name]] = place
    return found


def _reads_leading_axes(node: onnx.NodeProto) -> bool:
    """Whether a node computes the lengths of axes before the last, which a slot does not change."""
    return node.op_type == "Shape" and any(each.name == "end" and 0 <= each.i <= 3 for each in node.attribute)


def _depth(cache: onnx.ValueInfoProto, bits: int) -> int:
    kind = cache.type.tensor_type
    depth = int(kind.shape.dim[-1].dim_value)
    if kind.elem_type != FLOAT or len(kind.shape.dim) != 4 or not depth:
        raise UsageError(
            f"--cache-bits {bits}: {cache.name} is not float32 [batch, heads, capacity, depth]. Export the model in "
            "float32 (--dtype float32), or leave out --cache-bits."
        )
    return depth
