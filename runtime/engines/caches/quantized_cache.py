"""Caches of 8 or 4 bits: a decoder's graph is changed, where it is opened or built, to write and read slots of bytes.

QuantizeCache turns new keys and values into slots, TensorScatter writes those as it writes floats, and CachedAttention
reads them. plugins/quantize_cache/slots.py describes their bytes. Both compute in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.plan_record import CACHE_BITS
from intaglio.errors import UsageError
from intaglio.plugins.quantize_cache.slots import WORD, slot_bytes
from intaglio.plugins.registry import DOMAIN
from intaglio.runtime.engines.caches.cached_attention import FLOAT, FLOATS, OPERATOR, QUANTIZE, attend_by_our_kernel
from intaglio.runtime.engines.onnx_nodes import all_nodes, import_our_domain

if TYPE_CHECKING:
    import onnx

UINT8, INT = 2, 2  # of onnx.TensorProto, and of onnx.AttributeProto, which are not loaded here
KEY, VALUE = 1, 2  # inputs of CachedAttention
FIX = "Leave out --cache-bits."
NONE = "--cache-bits is for decoders, and none is given. Leave it out."


def check_bits(bits: int) -> None:
    """Raise `UsageError` unless `bits` is one of `CACHE_BITS`."""
    if bits not in CACHE_BITS:
        raise UsageError(f"--cache-bits {bits}: expected one of {', '.join(map(str, CACHE_BITS))}.")


def check_manifest(bundle: Bundle, bits: int) -> None:
    """Raise `UsageError` for a bundle that is no decoder, and for other numbers of bits."""
    check_bits(bits)
    if not bundle.manifest.generates:
        raise UsageError(NONE)
    if bundle.manifest.encoder is not None:
        raise UsageError(f"--cache-bits {bits}: {bundle.path} is an encoder-decoder, expected a decoder. Leave it out.")


def quantize_caches(model: onnx.ModelProto, bits: int, words: bool = False) -> None:
    """Let our kernel attend to the caches, and let these hold slots of `bits`, one of `CACHE_BITS`.

    The caches' inputs and outputs become uint8 [batch, heads, capacity, bytes of a slot] or, with `words`, float32
    [batch, heads, capacity, words of a slot]: the same bytes, four in an element, for TensorRT, whose caches are of
    floats. Raises `UsageError` if a cache is not of floats, and if a node reads one that can't read slots.
    """
    check_bits(bits)
    attend_by_our_kernel(model, FLOATS)
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
    floats = {name: inputs[name].type.tensor_type.elem_type for name in writers}
    element, bytes_of_element = (FLOAT, WORD) if words else (UINT8, 1)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.name in caches:
            cache = caches[value.name]
            kind = value.type.tensor_type
            kind.elem_type = element
            kind.shape.dim[-1].dim_value = slot_bytes(depths[cache], of_option[places[cache]]) // bytes_of_element
    settings = dict(zip(("key_bits", "value_bits"), CACHE_BITS[bits], strict=True))
    of_attention = {name: (floats[cache], {**settings, "value_depth": depths[cache]}) for name, cache in caches.items()}
    _attend(graph, of_attention)
    nodes = []
    for node in graph.node:
        cache = node.input[0] if node.op_type == "TensorScatter" else ""
        if cache in writers:
            slots = _like(graph, inputs[cache], f"{cache}.new_slots")
            quantize = type(node)(op_type=QUANTIZE, domain=DOMAIN, name=slots, input=[node.input[1]], output=[slots])
            for name, number in (("bits", of_option[places[cache]]), ("element_bits", 8 * bytes_of_element)):
                quantize.attribute.add(name=name, type=INT, i=number)
            if floats[cache] != FLOAT:
                wide = _like(graph, inputs[cache], f"{cache}.new", depths[cache])
                nodes.append(_cast(node, quantize.input[0], wide, FLOAT))
                quantize.input[0] = wide
            nodes.append(quantize)
            node.input[1] = slots
        nodes.append(node)
    _replace(graph, nodes)
    import_our_domain(model)


def _like(graph: onnx.GraphProto, cache: onnx.ValueInfoProto, name: str, depth: int | None = None) -> str:
    """Describe new slots of a cache, or its channels in float32, as a value of the graph; returns its `name`.

    ONNX Runtime takes the type of what QuantizeCache returns from there, and TensorRT's plugins the lengths.
    """
    value = graph.value_info.add()
    value.CopyFrom(cache)
    value.name = name
    value.type.tensor_type.shape.dim[2].Clear()  # the tokens, of which there are fewer than slots
    if depth is not None:
        value.type.tensor_type.elem_type = FLOAT
        value.type.tensor_type.shape.dim[-1].dim_value = depth
    return name


def _attend(graph: onnx.GraphProto, of_attention: dict[str, tuple[int, dict[str, int]]]) -> None:
    """Let every CachedAttention read slots, in branches of nodes too.

    `of_attention`: values read -> the type that the cache had, of the query and the result, and the attributes.
    """
    nodes = []
    for node in graph.node:
        for attribute in node.attribute:
            for branch in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                _attend(branch, of_attention)
        nodes.append(node)
        if node.op_type != OPERATOR:
            continue
        kind, settings = of_attention[node.input[VALUE]]
        for name, number in settings.items():
            node.attribute.add(name=name, type=INT, i=number)
        if kind != FLOAT:
            query, result = node.input[0], node.output[0]
            node.input[0], node.output[0] = _widened(graph, query, result), f"{result}.float"
            nodes[-1:] = [_cast(node, query, node.input[0], FLOAT), node, _cast(node, node.output[0], result, kind)]
    _replace(graph, nodes)


def _widened(graph: onnx.GraphProto, query: str, result: str) -> str:
    """The name of a query in float32, described where the query is."""
    name = f"{result}.query"
    for found in [each for each in (*graph.value_info, *graph.input) if each.name == query]:
        value = graph.value_info.add()
        value.CopyFrom(found)
        value.name, value.type.tensor_type.elem_type = name, FLOAT
    return name


def _cast(node: onnx.NodeProto, given: str, made: str, kind: int) -> onnx.NodeProto:
    cast = type(node)(op_type="Cast", name=f"{made}/Cast", input=[given], output=[made])
    cast.attribute.add(name="to", type=INT, i=kind)
    return cast


def _replace(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    del graph.node[:]
    graph.node.extend(nodes)


def _places(caches: dict[str, str], graph: onnx.GraphProto, bits: int) -> dict[str, int]:
    """Cache -> the input of CachedAttention that reads it, `KEY` or `VALUE`; nothing else may read one.

    `caches`: the names of each cache's buffer, before and after new slots are written -> the cache.
    """
    found = dict.fromkeys(caches.values(), KEY)  # also of one that nothing reads
    for node in all_nodes(graph.node):
        if node.op_type == OPERATOR and node.input[VALUE] not in caches:
            raise UsageError(f"--cache-bits {bits}: the graph does not write {node.input[VALUE]}. {FIX}")
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
    if kind.elem_type not in FLOATS or len(kind.shape.dim) != 4 or not depth:
        raise UsageError(f"--cache-bits {bits}: {cache.name} is not float [batch, heads, capacity, depth]. {FIX}")
    return depth
