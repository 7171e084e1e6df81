"""The one place that writes decoder graphs: the operators that every family is put together from.

Decoders are not traced: the graph is written node by node from config.json, in standard operators of opset 24. So
exporting costs no tracer's time or memory, a norm is one node, and the cache is what it has to be: buffers that
`TensorScatter` writes in place and `Attention` reads, which no tracer makes of a model's own cache. The weights stay
unread in their files, under the names that the checkpoint's modules give them.

The inputs and outputs are described in docs/bundle.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

import intaglio
from intaglio.bundle import Decoder
from intaglio.errors import SourceError
from intaglio.exporters.decoder_weights import HEAD, DecoderWeights

OPSET, IR_VERSION = 24, 11  # the first opset with TensorScatter, and the format that came with it
ACTIVATIONS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "silu", "swish")


class DecoderGraph:
    """A decoder's graph while it is written. Values are [batch, tokens, width] unless said otherwise.

    A node is named after the module in which it is written, `<module path>/<operator>`, and so is its output.
    """

    def __init__(self, decoder: Decoder, weights: DecoderWeights, dtype: ir.DataType):
        self.decoder = decoder
        self.weights = weights
        self.dtype = dtype
        self.layers: dict[str, str] = {}  # module path -> the value that it returns, in execution order
        self._scopes: list[str] = []
        self._counts: dict[str, int] = {}
        integers = ir.DataType.INT64
        self.input_ids = _value("input_ids", integers, ["batch", "tokens"])
        self.positions = _value("positions", integers, ["batch", "tokens"])
        self.attention_mask = _value("attention_mask", ir.DataType.BOOL, ["batch", "tokens", "capacity"])
        self.write_start = _value("write_start", integers, ["batch"])
        self.logit_indices = _value("logit_indices", integers, ["batch", "positions_wanted"])
        cache: list[str | int] = ["batch", decoder.kv_heads, "capacity", decoder.head_dim]
        self._past = [
            (_value(f"past_key_{index}", dtype, cache), _value(f"past_value_{index}", dtype, cache))
            for index in range(decoder.layers)
        ]
        named = [self.input_ids, self.positions, self.attention_mask, self.write_start, self.logit_indices]
        inputs = [*named, *(value for pair in self._past for value in pair)]
        self._graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": OPSET}, name="decoder")
        self.model = ir.Model(
            self._graph, ir_version=IR_VERSION, producer_name="intaglio", producer_version=intaglio.__version__
        )
        self._present: list[ir.Value] = []
        self._mask = self.op("Unsqueeze", [self.attention_mask, self.constant("axis_1", [1])])  # one for all heads

    @contextmanager
    def module(self, path: str) -> Iterator[None]:
        """Write what the module at `path` computes; the value that is written last in it is what it returns."""
        self._scopes.append(path)
        yield
        self._scopes.pop()
        last = self._graph[-1].outputs[0].name
        assert last is not None
        self.layers[path] = last

    def op(self, op_type: str, inputs: Sequence[ir.Value | None], outputs: int = 1, **attributes: Any) -> ir.Value:
        """Append a node and return its first output."""
        return self.ops(op_type, inputs, outputs, **attributes)[0]

    def ops(self, op_type: str, inputs: Sequence[ir.Value | None], outputs: int, **attributes: Any) -> list[ir.Value]:
        """Append a node and return all of its outputs."""
        scope = self._scopes[-1] if self._scopes else "decoder"
        name = f"{scope}/{op_type}"
        count = self._counts[name] = self._counts.get(name, 0) + 1
        name = name if count == 1 else f"{name}_{count}"
        node = ir.Node(
            "", op_type, inputs, ir.convenience.convert_attributes(attributes), num_outputs=outputs, name=name
        )
        for index, value in enumerate(node.outputs):
            value.name = name if outputs == 1 else f"{name}_output_{index}"
        self._graph.append(node)
        return list(node.outputs)

    def constant(self, name: str, numbers: Any, dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        """A small constant, shared by all who ask for it under the same name."""
        if name not in self._graph.initializers:
            self._initializer(name, ir.tensor(np.asarray(numbers, dtype.numpy()), name=name))
        return self._graph.initializers[name]

    def weight(self, name: str, shape: Sequence[int], transposed: bool = False) -> ir.Value:
        """The checkpoint's tensor `name` of `shape`, as an initializer of that name.

        `transposed`: turned, for a matrix product with x on the left, and called `<name>_transposed`.
        """
        called = f"{name}_transposed" if transposed else name
        if called not in self._graph.initializers:
            self._initializer(called, self.weights.tensor(name, called, shape, self.dtype, transposed))
        return self._graph.initializers[called]

    def _initializer(self, name: str, tensor: ir.TensorProtocol) -> None:
        shape = ir.Shape([int(str(length)) for length in tensor.shape])
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        self._graph.register_initializer(value)

    def embedding(self, path: str, ids: ir.Value, rows: int, width: int) -> ir.Value:
        """Rows of the table at `path`, one for each of `ids` [batch, tokens]."""
        with self.module(path):
            return self.op("Gather", [self.weight(f"{path}.weight", [rows, width]), ids], axis=0)

    def linear(
        self, path: str, x: ir.Value, inputs: int, outputs: int, bias: bool = True, turned: bool = False
    ) -> ir.Value:
        """x·W (+ b). `turned`: the checkpoint holds W as [inputs, outputs] and not as torch's Linear has it."""
        with self.module(path):
            shape = [inputs, outputs] if turned else [outputs, inputs]
            product = self.op("MatMul", [x, self.weight(f"{path}.weight", shape, transposed=not turned)])
            return self.op("Add", [product, self.weight(f"{path}.bias", [outputs])]) if bias else product

    def layer_norm(self, path: str, x: ir.Value, width: int, epsilon: float, affine: bool = True) -> ir.Value:
        """LayerNorm over the last axis; without `affine` its scale is one and its bias is none."""
        with self.module(path):
            scale = self.weight(f"{path}.weight", [width]) if affine else self.constant("ones", [1] * width, self.dtype)
            bias = [self.weight(f"{path}.bias", [width])] if affine else []
            return self.op("LayerNormalization", [x, scale, *bias], axis=-1, epsilon=epsilon)

    def rms_norm(self, path: str, x: ir.Value, width: int, epsilon: float) -> ir.Value:
        """RMSNorm over the last axis."""
        with self.module(path):
            return self.op("RMSNormalization", [x, self.weight(f"{path}.weight", [width])], axis=-1, epsilon=epsilon)

    def activation(self, name: str, x: ir.Value) -> ir.Value:
        """The function that `transformers` calls `name`. Raises `SourceError` for one that is not known here."""
        if name not in ACTIVATIONS:
            raise SourceError(f"config.json: activation {name!r}: expected one of {', '.join(ACTIVATIONS)}.")
        if name == "relu":
            return self.op("Relu", [x])
        if name in ("silu", "swish"):
            return self.op("Mul", [x, self.op("Sigmoid", [x])])
        return self.op("Gelu", [x], approximate="none" if name == "gelu" else "tanh")

    def add(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """A residual connection."""
        return self.op("Add", [left, right])

    def heads(self, x: ir.Value, count: int) -> ir.Value:
        """[batch, tokens, count · head_dim] to [batch, count, tokens, head_dim]."""
        shape = self.constant(f"shape_{count}_heads", [0, 0, count, self.decoder.head_dim])
        return self.op("Transpose", [self.op("Reshape", [x, shape])], perm=[0, 2, 1, 3])

    def rotary_angles(self, frequencies: np.ndarray[Any, np.dtype[np.float32]], factor: float) -> RotaryAngles:
        """Cosines and sines of position · frequency, [batch, tokens, head_dim / 2], in float32 up to the last step."""
        with self.module("rotary"):
            places = self.op("Cast", [self.positions], to=ir.DataType.FLOAT)
            places = self.op("Unsqueeze", [places, self.constant("axis_last", [-1])])
            angles = self.op("Mul", [places, self.constant("rotary.frequencies", frequencies, ir.DataType.FLOAT)])
            both = [self.op(op_type, [angles]) for op_type in ("Cos", "Sin")]
            if factor != 1.0:
                scale = self.constant("rotary.factor", factor, ir.DataType.FLOAT)
                both = [self.op("Mul", [value, scale]) for value in both]
            if self.dtype != ir.DataType.FLOAT:
                both = [self.op("Cast", [value], to=self.dtype) for value in both]
        self.layers.pop("rotary")  # no module of the checkpoint
        return both[0], both[1]

    def rotate(self, x: ir.Value, angles: RotaryAngles) -> ir.Value:
        """Rotary position embedding of [batch, heads, tokens, head_dim], each half of a head against the other."""
        return self.op("RotaryEmbedding", [x, *angles])

    def attention(self, queries: ir.Value, keys: ir.Value, values: ir.Value, scale: float) -> ir.Value:
        """Write keys and values into this layer's cache, and attend to all of it that the mask lets through.

        All are [batch, heads, tokens, head_dim]; returned is [batch, tokens, heads · head_dim].
        """
        index = len(self._present) // 2
        for kind, past, new in zip(("key", "value"), self._past[index], (keys, values), strict=True):
            present = self.op("TensorScatter", [past, new, self.write_start], axis=2, mode="linear")
            present.name = f"present_{kind}_{index}"
            self._present.append(present)
        attended = self.op("Attention", [queries, *self._present[-2:], self._mask], scale=scale)
        width = self.decoder.heads * self.decoder.head_dim
        merged = self.constant("shape_merged_heads", [0, 0, width])
        return self.op("Reshape", [self.op("Transpose", [attended], perm=[0, 2, 1, 3]), merged])

    def finish(self, x: ir.Value, width: int) -> None:
        """Take the hidden states that are wanted through the head; `model` is then complete.

        Where the head is tied, its weight is the embedding's, which the file then holds once. Raises `SourceError`
        for weights that the checkpoint lacks, or has too many.
        """
        shape = [self.decoder.vocab_size, width]
        with self.module(HEAD):
            rows = self.op("Unsqueeze", [self.logit_indices, self.constant("axis_last", [-1])])
            wanted = self.op("GatherND", [x, rows], batch_dims=1)
            if self.weights.tied:
                matrix = self.op("Transpose", [self.weight(self.weights.table, shape)], perm=[1, 0])
            else:
                matrix = self.weight(f"{HEAD}.weight", shape, transposed=True)
            logits = self.op("MatMul", [wanted, matrix])
            if self.dtype != ir.DataType.FLOAT:
                logits = self.op("Cast", [logits], to=ir.DataType.FLOAT)
        self.layers.pop(HEAD)  # it returns those that are wanted, the checkpoint's module all
        self.weights.check()
        logits.name = "logits"
        self._graph.outputs.extend([logits, *self._present])
        logits.type = ir.TensorType(ir.DataType.FLOAT)
        logits.shape = ir.Shape(["batch", "positions_wanted", self.decoder.vocab_size])
        for value, past in zip(self._present, [past for pair in self._past for past in pair], strict=True):
            value.type, value.shape = past.type, past.shape
        ShapeInferencePass()(self.model)


RotaryAngles = tuple[ir.Value, ir.Value]  # cosines, sines


def _value(name: str, dtype: ir.DataType, shape: Sequence[str | int]) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
