"""Common parts of all speech recognisers' graphs: inputs and outputs, and the validity of samples and frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from intaglio.bundle.bundle import TensorSpec
from intaglio.exporters.writing.checkpoint_weights import CheckpointWeights
from intaglio.exporters.writing.graph_writer import GraphWriter, graph_input, named
from intaglio.networks.speech.configuration import SpeechConfig

LENGTHS = TensorSpec("lengths", "int64", ("batch",))
AUDIO = TensorSpec("audio", "float32", ("batch", "samples"))
FLOAT, INT = ir.DataType.FLOAT, ir.DataType.INT64


class SpeechGraph(GraphWriter):
    """A recogniser's graph while it is written. States are [batch, frames, width] in the graph's dtype."""

    def __init__(self, config: SpeechConfig, weights: CheckpointWeights, dtype: ir.DataType, takes_audio: bool):
        """`takes_audio`: the graph takes a waveform, else the features of the front end."""
        self.config = config
        features = TensorSpec("features", "float32", ("batch", "feature_frames", config.front_end.mels))
        self.signal = graph_input(AUDIO if takes_audio else features)
        self.lengths = graph_input(LENGTHS)
        heads = config.num_attention_heads
        super().__init__("speech", [self.signal, self.lengths], weights, dtype, heads, config.hidden_size // heads)

    def size(self, x: ir.Value, axis: int) -> ir.Value:
        """The length of an axis, int64 []."""
        return self.op("Squeeze", [self.op("Shape", [x], start=axis, end=axis + 1)])

    def integer(self, number: int) -> ir.Value:
        """An int64 constant []."""
        return self.constant(f"integer_{number}", number)

    def integers(self, *numbers: int) -> ir.Value:
        """An int64 constant [len(numbers)]."""
        return self.constant("integers_" + "_".join(map(str, numbers)), numbers)

    def number(self, value: float, dtype: ir.DataType | None = None) -> ir.Value:
        """A constant [] of `dtype`, by default the graph's."""
        dtype = dtype or self.dtype
        return self.constant(f"number_{value!r}_{dtype.name.lower()}", value, dtype)

    def indices(self, size: ir.Value) -> ir.Value:
        """0 to `size` - 1, int64 [size]."""
        return self.op("Range", [self.integer(0), size, self.integer(1)])

    def valid(self, lengths: ir.Value, size: ir.Value) -> ir.Value:
        """bool [batch, size], true for the first `lengths` [batch] positions of each row."""
        return self.op("Less", [self.indices(size), self.op("Unsqueeze", [lengths, self.integers(1)])])

    def kept(self, x: ir.Value, keep: ir.Value, axes: tuple[int, ...], dtype: ir.DataType | None = None) -> ir.Value:
        """`x` of `dtype`, by default the graph's, with zeros where `keep` [batch, positions] is false.

        `axes`: the axes of `x` that `keep` lacks.
        """
        return self.op("Where", [self.op("Unsqueeze", [keep, self.integers(*axes)]), x, self.number(0.0, dtype)])

    def halved(self, lengths: ir.Value) -> ir.Value:
        """The lengths after a convolution of stride 2: half, rounded up."""
        return self.op("Div", [self.op("Add", [lengths, self.integer(1)]), self.integer(2)])

    def swish(self, x: ir.Value) -> ir.Value:
        """x times its sigmoid."""
        return self.op("Mul", [x, self.op("Sigmoid", [x])])

    def swapped(self, x: ir.Value) -> ir.Value:
        """`x` [batch, a, b] as [batch, b, a]."""
        return self.op("Transpose", [x], perm=[0, 2, 1])

    def convolution(self, path: str, x: ir.Value, shape: list[int], bias: bool = True, **attributes: Any) -> ir.Value:
        """A convolution with the weight of `shape` [outputs, inputs / groups, *kernel] at `path`."""
        with self.module(path):
            biases = [self.weight(f"{path}.bias", shape[:1])] if bias else []
            return self.op("Conv", [x, self.weight(f"{path}.weight", shape), *biases], **attributes)

    def extended_weight(self, name: str, shape: Sequence[int], more: npt.NDArray[np.float32]) -> ir.Value:
        """The checkpoint's tensor `name` of `shape` with `more` behind it along axis 1, as an initializer."""
        tensor = self.weights.tensor(name, name, shape, self.dtype, transposed=False)
        length = [shape[0], shape[1] + more.shape[1], *shape[2:]]
        more = more.astype(self.dtype.numpy())
        return self._made(f"{name}_extended", length, lambda: np.concatenate([tensor.numpy(), more], axis=1))

    def alternate_weights(self, name: str, width: int) -> tuple[ir.Value, ir.Value]:
        """The checkpoint's linear weight `name` [width, width] as two initializers, of the even and of the odd inputs.

        Both are [width / 2, width], for a matrix product with x on the left.
        """
        tensor = self.weights.tensor(name, name, [width, width], self.dtype, transposed=False)
        half = [width // 2, width]
        even = self._made(f"{name}_even_transposed", half, lambda: tensor.numpy()[:, ::2].T)
        odd = self._made(f"{name}_odd_transposed", half, lambda: tensor.numpy()[:, 1::2].T)
        return even, odd

    def _made(self, name: str, shape: Sequence[int], numbers: Callable[[], npt.NDArray[Any]]) -> ir.Value:
        """An initializer of `shape` in the graph's dtype, whose `numbers` are computed when they are written."""
        lazy = ir.LazyTensor(
            lambda: ir.Tensor(np.ascontiguousarray(numbers()), name=name), self.dtype, ir.Shape(shape), name=name
        )
        self._initializer(name, lazy)
        return self._graph.initializers[name]

    def finish(self, states: ir.Value, frames: ir.Value) -> None:
        """Write the CTC head over `states`, and make its log-probabilities and `frames` [batch] the outputs.

        Raises `SourceError` for weights that the checkpoint lacks.
        """
        vocabulary = self.config.vocab_size
        logits = self.linear("head", states, self.config.hidden_size, vocabulary)
        if self.dtype != FLOAT:
            logits = self.op("Cast", [logits], to=FLOAT)
        log_probs = self.op("LogSoftmax", [logits], axis=-1)
        self.weights.check()
        log_probs.type, frames.type = ir.TensorType(FLOAT), ir.TensorType(INT)
        frames = self.op("Identity", [frames]) if frames in self._graph.inputs else frames
        outputs = [named(log_probs, "log_probs", ["batch", "frames", vocabulary])]
        self._graph.outputs.extend([*outputs, named(frames, "output_lengths", ["batch"])])
        ShapeInferencePass()(self.model)
