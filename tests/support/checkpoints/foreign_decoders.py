"""Decoders as other tools write them in ONNX: each kind of attention and cache, one or two small layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from tiny_decoders import END, VOCABULARY, write_byte_tokenizer

WIDTH, HEADS, KV_HEADS, DIM, INNER, POSITIONS = 64, 4, 2, 32, 96, 64
Array = npt.NDArray[Any]


class Foreign(NamedTuple):
    """What the graph is made of."""

    attention: str = "group_query"  # "group_query", "attention" or "concat"
    windows: tuple[int | None, ...] = (None,)  # of each layer
    bits: int = 0  # of the weights in MatMulNBits; 0: float32
    block: int = 32
    zero_points: bool = False
    rotated: int = DIM  # components of a head
    interleaved: bool = False
    softcap: float = 0.0
    packed: bool = True  # queries, keys and values in one product
    dtype: int = TensorProto.FLOAT
    bias: bool = False
    all_logits: bool = False  # an input says how many are wanted
    opset: int = 23


class Writer:
    """The nodes and weights of a graph."""

    def __init__(self, made: Foreign):
        self.made, self.nodes, self.weights = made, list[Any](), list[Any]()
        self._random = np.random.default_rng(0)

    def op(self, kind: str, *inputs: str, domain: str = "", outputs: int = 1, **attributes: Any) -> str:
        """Add a node, and return the name of its first output."""
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, domain=domain, **attributes))
        return names[0]

    def weight(self, name: str, array: Array) -> str:
        """Add a weight, in the graph's dtype if it is of floats."""
        if array.dtype.kind == "f":
            array = array.astype(helper.tensor_dtype_to_np_dtype(self.made.dtype))
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def numbers(self, *values: Any, dtype: Any = np.int64) -> str:
        """Add a constant."""
        return self.weight(f"c{len(self.weights)}", np.array(values, dtype))

    def random(self, *shape: int) -> Array:
        """Random numbers."""
        return self._random.standard_normal(shape).astype(np.float32)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """A product with a weight, as the graph's weights are stored."""
        name, made = f"w{len(self.weights)}", self.made
        if not made.bits:
            result = self.op("MatMul", x, self.weight(name, self.random(inputs, outputs) * 0.3))
            return self.op("Add", result, self.weight(f"{name}.bias", self.random(outputs))) if made.bias else result
        groups, per_byte = -(-inputs // made.block), 8 // made.bits
        codes = self._random.integers(0, 256, (outputs, groups, made.block // per_byte)).astype(np.uint8)
        scales = (self._random.random((outputs, groups)) + 0.5).astype(np.float32) * 0.3 / 2 ** (made.bits - 1)
        parts = [self.weight(f"{name}_Q4", codes), self.weight(f"{name}_scales", scales)]
        if made.zero_points or made.bias:
            zeros = self._random.integers(0, 256, (outputs, -(-groups * made.bits // 8))).astype(np.uint8)
            parts.append(self.weight(f"{name}_zero_points", zeros) if made.zero_points else "")
        if made.bias:
            parts += ["", self.weight(f"{name}.bias", self.random(outputs))]
        return self.op(
            "MatMulNBits", x, *parts, domain="com.microsoft",
            K=inputs, N=outputs, bits=made.bits, block_size=made.block, accuracy_level=4,
        )  # fmt: skip


def write_foreign(folder: Path, made: Foreign, **genai: Any) -> Path:
    """Write the graph, its tokenizer and its genai_config.json into `folder`; returns the path of the graph."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(made)
    layers = range(len(made.windows))
    states = writer.op("Gather", writer.weight("embedding", writer.random(VOCABULARY, WIDTH)), "input_ids")
    context = CONTEXTS[made.attention](writer)
    outputs = []
    for layer in layers:
        x = _norm(writer, states)
        attended = ATTENTIONS[made.attention](writer, x, layer, context)
        outputs += [f"present.{layer}.key", f"present.{layer}.value"]
        branch = writer.linear(attended, HEADS * DIM, WIDTH)
        weight = writer.weight(f"norm{len(writer.weights)}", writer.random(WIDTH))
        writer.nodes.append(
            helper.make_node(
                "SkipSimplifiedLayerNormalization", [states, branch, weight], [f"n{layer}", "", "", f"s{layer}"],
                domain="com.microsoft", epsilon=1e-5,
            )
        )  # fmt: skip
        gate = writer.op("Relu", _gate(writer, f"n{layer}"))
        states = writer.op("Add", f"s{layer}", writer.linear(gate, INNER, WIDTH))
    states = _norm(writer, states)
    if made.all_logits:
        count = writer.op("Neg", writer.op("Reshape", "num_logits_to_keep", writer.numbers(1)))
        states = writer.op("Slice", states, count, writer.numbers(1 << 40), writer.numbers(1))
    logits = writer.linear(states, WIDTH, VOCABULARY)
    writer.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
    _save(folder / "model.onnx", writer, outputs)
    write_byte_tokenizer(folder)
    settings = {"context_length": POSITIONS, "eos_token_id": END, "bos_token_id": 1, **genai}
    (folder / "genai_config.json").write_text(json.dumps({"model": settings}))
    return folder / "model.onnx"


def _gate(writer: Writer, x: str) -> str:
    if writer.made.opset >= 18:
        return writer.linear(x, WIDTH, INNER)
    parts = writer.op("Split", writer.linear(x, WIDTH, 2 * INNER), outputs=2, axis=-1)  # in halves, without saying so
    return writer.op("Mul", parts, parts.replace("_0", "_1"))


def _norm(writer: Writer, x: str) -> str:
    weight = writer.weight(f"norm{len(writer.weights)}", writer.random(WIDTH))
    if writer.made.opset < 18:
        squares = writer.op("ReduceMean", writer.op("Mul", x, x), axes=[-1])
        deviation = writer.op("Sqrt", writer.op("Add", squares, writer.numbers(1e-5, dtype=np.float32)))
        return writer.op("Mul", writer.op("Div", x, deviation), weight)
    return writer.op("SimplifiedLayerNormalization", x, weight, epsilon=1e-5, axis=-1, stash_type=1)


def _save(path: Path, writer: Writer, outputs: list[str]) -> None:
    made = writer.made
    value = helper.make_tensor_value_info
    inputs = [value("input_ids", TensorProto.INT64, ["batch", "tokens"])]
    inputs.append(value("attention_mask", TensorProto.INT64, ["batch", "total"]))
    if made.attention != "group_query":
        inputs.append(value("position_ids", TensorProto.INT64, ["batch", "tokens"]))
    if made.all_logits:
        inputs.append(value("num_logits_to_keep", TensorProto.INT64, []))
    caches = ["batch", KV_HEADS, "past", DIM]
    inputs += [value(name.replace("present", "past_key_values"), made.dtype, caches) for name in outputs]
    results = [value("logits", made.dtype, ["batch", "tokens", VOCABULARY])]
    results += [value(name, made.dtype, ["batch", KV_HEADS, "total", DIM]) for name in outputs]
    graph = helper.make_graph(writer.nodes, "decoder", inputs, results, writer.weights)
    versions = [helper.make_opsetid("", made.opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=versions, ir_version=10, producer_name="another tool"), path)


def _tables(writer: Writer) -> tuple[str, str]:
    pairs = writer.made.rotated // 2
    angles = np.arange(POSITIONS)[:, None] / 100.0 ** (np.arange(pairs) / pairs)
    return writer.weight("cosines", np.cos(angles)), writer.weight("sines", np.sin(angles))


def _projected(writer: Writer, x: str) -> list[str]:
    return [writer.linear(x, WIDTH, count * DIM) for count in (HEADS, KV_HEADS, KV_HEADS)]


def _lengths(writer: Writer) -> tuple[str, ...]:
    """The inputs of GroupQueryAttention that other tools compute from the mask."""
    total = writer.op("ReduceSum", "attention_mask", writer.numbers(1), keepdims=0)
    last = writer.op("Cast", writer.op("Sub", total, writer.numbers(1)), to=TensorProto.INT32)
    length = writer.op("Gather", writer.op("Shape", "attention_mask"), writer.weight("one", np.array(1)))
    return last, writer.op("Cast", length, to=TensorProto.INT32), *_tables(writer)


def _group_query(writer: Writer, x: str, layer: int, context: tuple[str, ...]) -> str:
    made = writer.made
    count = HEADS + 2 * KV_HEADS
    given = [writer.linear(x, WIDTH, count * DIM), "", ""] if made.packed else _projected(writer, x)
    caches = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
    presents = [name.replace("past_key_values", "present") for name in caches]
    output = f"attended{layer}"
    window = made.windows[layer]
    writer.nodes.append(
        helper.make_node(
            "GroupQueryAttention", [*given, *caches, *context], [output, *presents], domain="com.microsoft",
            num_heads=HEADS, kv_num_heads=KV_HEADS, scale=0.3, softcap=made.softcap, do_rotary=1,
            rotary_interleaved=int(made.interleaved), local_window_size=-1 if window is None else window,
        )
    )  # fmt: skip
    return output


def _rotations(writer: Writer) -> tuple[str, ...]:
    """Angles, and the mask of each layer: added to the scores."""
    tables = [writer.op("Gather", table, "position_ids") for table in _tables(writer)]
    length = writer.op("Shape", "attention_mask", start=1, end=2)
    zero, one = writer.weight("zero", np.array(0)), writer.weight("one", np.array(1))
    places = writer.op("Range", zero, writer.op("Squeeze", length), one)
    rows = writer.op("Unsqueeze", "position_ids", writer.numbers(-1))
    masks = []
    for window in writer.made.windows:
        seen = writer.op("LessOrEqual", places, rows)
        if window is not None:
            oldest = writer.op("Sub", rows, writer.numbers(window))
            seen = writer.op("And", seen, writer.op("Greater", places, oldest))
        hidden = writer.weight(f"h{len(writer.weights)}", np.array(-65504.0, np.float32))
        shown = writer.weight(f"z{len(writer.weights)}", np.array(0.0, np.float32))
        masks.append(writer.op("Unsqueeze", writer.op("Where", seen, shown, hidden), writer.numbers(1)))
    return (*tables, *masks)


def _rotated(writer: Writer, x: str, count: int, context: tuple[str, ...]) -> str:
    if writer.made.opset < 23:
        return _rotated_in_parts(writer, x, count, context)
    return writer.op(
        "RotaryEmbedding", x, *context[:2], num_heads=count, interleaved=int(writer.made.interleaved),
        rotary_embedding_dim=writer.made.rotated,
    )  # fmt: skip


def _rotated_in_parts(writer: Writer, x: str, count: int, context: tuple[str, ...]) -> str:
    heads = writer.op("Reshape", x, writer.numbers(0, 0, count, DIM))
    cosines, sines = (writer.op("Unsqueeze", each, writer.numbers(2)) for each in context[:2])
    first = writer.op("Split", heads, outputs=2, axis=-1)
    second = first.replace("_0", "_1")
    turned = [
        writer.op("Sub", writer.op("Mul", first, cosines), writer.op("Mul", second, sines)),
        writer.op("Add", writer.op("Mul", second, cosines), writer.op("Mul", first, sines)),
    ]
    joined = writer.op("Concat", *turned, axis=-1)
    return writer.op("Reshape", joined, writer.numbers(0, 0, count * DIM))


def _attention(writer: Writer, x: str, layer: int, context: tuple[str, ...]) -> str:
    queries, keys, values = _projected(writer, x)
    queries, keys = _rotated(writer, queries, HEADS, context), _rotated(writer, keys, KV_HEADS, context)
    caches = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
    output = f"attended{layer}"
    writer.nodes.append(
        helper.make_node(
            "Attention", [queries, keys, values, context[2 + layer], *caches],
            [output, *(name.replace("past_key_values", "present") for name in caches)],
            q_num_heads=HEADS, kv_num_heads=KV_HEADS, scale=0.3, softcap=writer.made.softcap,
        )
    )  # fmt: skip
    return output


def _concat(writer: Writer, x: str, layer: int, context: tuple[str, ...]) -> str:
    queries, keys, values = _projected(writer, x)
    queries, keys = _rotated(writer, queries, HEADS, context), _rotated(writer, keys, KV_HEADS, context)
    joined = []
    for kind, value in (("key", keys), ("value", values)):
        heads = writer.op("Reshape", value, writer.numbers(0, 0, KV_HEADS, DIM))
        heads = writer.op("Transpose", heads, perm=[0, 2, 1, 3])
        present = f"present.{layer}.{kind}"
        writer.nodes.append(helper.make_node("Concat", [f"past_key_values.{layer}.{kind}", heads], [present], axis=2))
        repeated = writer.op(
            "Expand", writer.op("Unsqueeze", present, writer.numbers(2)), writer.numbers(1, 1, 2, 1, 1)
        )
        joined.append(writer.op("Reshape", repeated, writer.numbers(0, HEADS, -1, DIM)))
    heads = writer.op("Reshape", queries, writer.numbers(0, 0, HEADS, DIM))
    heads = writer.op("Transpose", heads, perm=[0, 2, 1, 3])
    half = writer.weight(f"half{layer}", np.array(0.6, np.float32))
    scores = writer.op(
        "MatMul", writer.op("Mul", heads, half),
        writer.op("Mul", writer.op("Transpose", joined[0], perm=[0, 1, 3, 2]), half),
    )  # fmt: skip
    if writer.made.softcap:
        cap = writer.weight(f"cap{layer}", np.array(writer.made.softcap, np.float32))
        scores = writer.op("Mul", writer.op("Tanh", writer.op("Div", scores, cap)), cap)
    weights = writer.op("Softmax", writer.op("Add", scores, context[2 + layer]), axis=-1)
    attended = writer.op("MatMul", weights, joined[1])
    merged = writer.op("Transpose", attended, perm=[0, 2, 1, 3])
    return writer.op("Reshape", merged, writer.numbers(0, 0, HEADS * DIM))


CONTEXTS: dict[str, Callable[[Writer], tuple[str, ...]]] = {
    "group_query": _lengths, "attention": _rotations, "concat": _rotations,
}  # fmt: skip
ATTENTIONS: dict[str, Callable[[Writer, str, int, tuple[str, ...]], str]] = {
    "group_query": _group_query, "attention": _attention, "concat": _concat,
}  # fmt: skip
