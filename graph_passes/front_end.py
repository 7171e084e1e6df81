"""The part of a graph that prepares its input: log-mel features or a normalised waveform, or normalised pixels.

It stays in float32: the power of loud speech exceeds float16, and the logarithm of a quiet band's power amplifies the
rounding of its weights without bound. Of an image, the layers behind it are those that a pass is for.
"""

from __future__ import annotations

import onnx_ir as ir

from intaglio.runtime.speech.recognizer import AUDIO

STRUCTURE = frozenset({"Shape", "Size"})
SPECTRA = frozenset({"Conv", "MatMul", "STFT", "DFT"})
LAYERS = frozenset({"BatchNormalization", "Conv", "GRU", "Gemm", "LSTM", "LayerNormalization", "MatMul", "RNN"})
NOT_LINEAR = frozenset({"Gelu", "LayerNormalization", "Relu", "Sigmoid", "Softmax", "Tanh"})


def front_end(model: ir.Model) -> set[ir.Node]:
    """Return the nodes that prepare a waveform or pixels; none in a graph that takes neither.

    1. A Log of the power (x·x, or Pow) of a spectrum (Conv, MatMul, STFT or DFT) with no activation function before
       it, and all nodes that it depends on.
    2. What follows it up to the first layer (Conv, MatMul, Gemm, a normalisation with weights), and all nodes which
       that depends on: the normalisation of the features, and how many they are.
    3. In a graph with an input of unsigned 8-bit integers, the pixels of images, or with the `audio` of a recogniser,
       what follows it up to the first layer, and all nodes which that depends on.
    """
    logs = [node for node in model.graph if node.op_type == "Log" and node.domain == "" and _is_of_power(node)]
    inputs = [value for value in model.graph.inputs if value.dtype == ir.DataType.UINT8 or value.name == AUDIO]
    reading = [user for value in inputs for user, _ in value.uses() if user.op_type not in STRUCTURE | LAYERS]
    return ancestors([*logs, *_following(logs), *reading, *_following(reading)])


def features(model: ir.Model, nodes: set[ir.Node]) -> set[ir.Value]:
    """The floating-point values that the layers after the front end take from it, whose nodes are `nodes`."""
    return {
        value
        for node in nodes
        for value in node.outputs
        if value.dtype is None or value.dtype.is_floating_point()
        if any(user not in nodes and user.op_type not in STRUCTURE for user, _ in value.uses())
    }


def ancestors(nodes: list[ir.Node]) -> set[ir.Node]:
    """`nodes`, and all whose numbers they depend on: of a value only the shape of which is used, nothing."""
    found: set[ir.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            if node.op_type in STRUCTURE and node.domain == "":
                continue
            waiting += [producer for value in node.inputs if value is not None and (producer := value.producer())]
    return found


def _is_of_power(log: ir.Node) -> bool:
    before = ancestors([log])
    kinds = {node.op_type for node in before}
    powers = any(
        node.op_type == "Pow" or (node.op_type == "Mul" and node.inputs[0] is node.inputs[1]) for node in before
    )
    return powers and not kinds.isdisjoint(SPECTRA) and kinds.isdisjoint(NOT_LINEAR)


def _following(first: list[ir.Node]) -> list[ir.Node]:
    """The nodes after `first`, up to the first layers."""
    found: set[ir.Node] = set(first)
    waiting = list(first)
    while waiting:
        for value in waiting.pop().outputs:
            for user, _ in value.uses():
                stops = user.op_type in STRUCTURE | LAYERS or user.domain != ""
                if user not in found and not stops:
                    found.add(user)
                    waiting.append(user)
    return list(found)
