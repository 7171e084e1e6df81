"""The modules of Conformer and Squeezeformer in a graph; `intaglio.networks.speech.modules` has the same in torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from intaglio.exporters.speech.graph import FLOAT, SpeechGraph
from intaglio.networks.speech.constants import LONGEST_WAVE, PADDED, REDUCTION_BEFORE, REDUCTION_KERNEL

NORM_EPSILON = 1e-5  # of torch's LayerNorm and BatchNorm1d


@dataclass(frozen=True)
class Distances:
    """The waves of the distances size to 0 between frames, and indices, int64 [size]."""

    sines: ir.Value  # [1, size + 1, width / 2]
    cosines: ir.Value  # the same
    backwards: ir.Value  # size - 1 to 0
    with_keys: ir.Value  # 1, 3, up to 2 · size - 1: the rows of shifted scores that hold the keys


@dataclass(frozen=True)
class Frames:
    """The inputs of the blocks besides the states, at one frame rate."""

    lengths: ir.Value  # int64 [batch]
    size: ir.Value  # frames of the batch, int64 []
    keep: ir.Value  # bool [batch, size], true for real frames
    mask: ir.Value  # added to scores: [batch, 1, 1, size], or without positions [batch, 1, size, size]
    distances: Distances | None  # None: attention has no positions


def frames_of(graph: SpeechGraph, x: ir.Value, lengths: ir.Value, relative: bool = True) -> Frames:
    """The `Frames` of states `x` [batch, frames, width]."""
    size = graph.size(x, 1)
    keep = graph.valid(lengths, size)
    lowest = graph.constant("lowest", np.finfo(graph.dtype.numpy()).min, graph.dtype)
    mask = graph.op("Where", [graph.op("Unsqueeze", [keep, graph.integers(1, 2)]), graph.number(0.0), lowest])
    if relative:
        return Frames(lengths, size, keep, mask, _distances(graph, size))
    one, rows = graph.integers(1), graph.op("Unsqueeze", [size, graph.integers(0)])
    shape = graph.op("Concat", [one, one, rows, one], axis=0)
    return Frames(lengths, size, keep, graph.op("Expand", [mask, shape]), None)  # ONNX Runtime wants a row per query


def _distances(graph: SpeechGraph, size: ir.Value) -> Distances:
    """The sines and cosines of each rate at the distances size to 0; the angles are float32."""
    width, minus_one = graph.config.hidden_size, graph.integer(-1)
    rates = np.exp(np.arange(0, width, 2, dtype=np.float32) * np.float32(-math.log(LONGEST_WAVE) / width))
    descending = graph.op("Range", [size, minus_one, minus_one])
    descending = graph.op("Unsqueeze", [graph.op("Cast", [descending], to=FLOAT), graph.integers(0, 2)])
    angles = graph.op("Mul", [descending, graph.constant("position_rates", rates, FLOAT)])
    waves = [graph.op(wave, [angles]) for wave in ("Sin", "Cos")]
    if graph.dtype != FLOAT:
        waves = [graph.op("Cast", [wave], to=graph.dtype) for wave in waves]
    # No Ranges: ONNX Runtime (1.31) makes a Slice of a Gather by a Range, and an empty one if the Range falls to 0.
    indices, one = graph.indices(size), graph.integer(1)
    backwards = graph.op("Sub", [graph.op("Sub", [size, one]), indices])
    with_keys = graph.op("Add", [graph.op("Add", [indices, indices]), one])
    return Distances(waves[0], waves[1], backwards, with_keys)


def _projected(graph: SpeechGraph, path: str, distances: Distances) -> ir.Value:
    """The linear layer over the positions of the distances size to -size, [1, 2 · size + 1, width].

    A position is a sine and a cosine of each rate in turns. The sines of -d are the negated sines of d, and the
    cosines are the same: so the distances from 0 on are enough, half of the products.
    """
    with graph.module(path):
        for_sines, for_cosines = graph.alternate_weights(f"{path}.weight", graph.config.hidden_size)
        of_sines = graph.op("MatMul", [distances.sines, for_sines])
        of_cosines = graph.op("MatMul", [distances.cosines, for_cosines])
        below_0 = graph.op("Gather", [graph.op("Sub", [of_cosines, of_sines]), distances.backwards], axis=1)
        return graph.op("Concat", [graph.op("Add", [of_cosines, of_sines]), below_0], axis=1)


def norm(graph: SpeechGraph, path: str, x: ir.Value) -> ir.Value:
    """LayerNorm over the width."""
    return graph.layer_norm(path, x, graph.config.hidden_size, NORM_EPSILON)


def scaling(graph: SpeechGraph, path: str, x: ir.Value) -> ir.Value:
    """γ·x + β of each channel."""
    width = [graph.config.hidden_size]
    with graph.module(path):
        scaled = graph.op("Mul", [x, graph.weight(f"{path}.weight", width)])
        return graph.op("Add", [scaled, graph.weight(f"{path}.bias", width)])


def feed_forward(graph: SpeechGraph, path: str, x: ir.Value, bias: bool = True) -> ir.Value:
    """Linear, Swish, linear."""
    width, inner = graph.config.hidden_size, graph.config.hidden_size * graph.config.feed_forward_expansion
    with graph.module(path):
        widened = graph.swish(graph.linear(f"{path}.linear1", x, width, inner, bias))
        return graph.linear(f"{path}.linear2", widened, inner, width, bias)


def attention(graph: SpeechGraph, path: str, x: ir.Value, frames: Frames, bias: bool = True) -> ir.Value:
    """Attention over the row's own frames, with relative positions if `frames` has any."""
    config = graph.config
    width, heads = config.hidden_size, config.num_attention_heads
    scale = (width // heads) ** -0.5
    with graph.module(path):
        q, k, v = (
            graph.heads(graph.linear(f"{path}.{name}_proj", x, width, width, bias), heads) for name in ("q", "k", "v")
        )
        q, mask = graph.op("Mul", [q, graph.number(scale)]), frames.mask
        if frames.distances is not None:
            u, v_bias = (_scaled_bias(graph, f"{path}.bias_{name}", scale) for name in ("u", "v"))
            projected = _projected(graph, f"{path}.position_proj", frames.distances)
            split = graph.op("Reshape", [projected, graph.integers(0, 0, heads, width // heads)])
            r = graph.op("Transpose", [split], perm=[0, 2, 3, 1])
            by_distance = graph.op("MatMul", [graph.op("Add", [q, v_bias]), r])
            mask = graph.op("Add", [_shifted(graph, by_distance, frames), mask])
            q = graph.op("Add", [q, u])
        merged = graph.attend(q, k, v, mask, 1.0)
        return graph.linear(f"{path}.o_proj", merged, width, width, bias)


def _scaled_bias(graph: SpeechGraph, name: str, scale: float) -> ir.Value:
    heads = graph.config.num_attention_heads
    weight = graph.weight(name, [heads, 1, graph.config.hidden_size // heads])
    return graph.op("Mul", [weight, graph.number(scale)])


def _shifted(graph: SpeechGraph, scores: ir.Value, frames: Frames) -> ir.Value:
    """Scores by distance [batch, heads, size, 2 · size + 1] to scores by key [batch, heads, size, size].

    `intaglio.networks.speech.modules.shifted` explains the indices.
    """
    assert frames.distances is not None
    shape = graph.op(
        "Concat", [graph.integers(0, 0, -1), graph.op("Unsqueeze", [frames.size, graph.integers(0)])], axis=0
    )
    # ONNX Runtime takes a third less time for Gather, which copies whole rows, than for Slice with steps.
    return graph.op("Gather", [graph.op("Reshape", [scores, shape]), frames.distances.with_keys], axis=2)


def convolution(
    graph: SpeechGraph,
    path: str,
    x: ir.Value,
    frames: Frames,
    activation: str,
    batch_norm: bool = True,
    bias: bool = True,
) -> ir.Value:
    """Pointwise convolution to twice the width, `activation`, depthwise convolution, Swish, pointwise convolution."""
    width, kernel = graph.config.hidden_size, graph.config.conv_kernel_size
    inner = width if activation == "glu" else 2 * width
    with graph.module(path):
        x = graph.linear(f"{path}.pointwise1", x, width, 2 * width, bias)
        if activation == "glu":
            left, gate = graph.ops("Split", [x], 2, axis=2, num_outputs=2)
            x = graph.op("Mul", [left, graph.op("Sigmoid", [gate])])
        elif activation == "swish":
            x = graph.swish(x)
        x = graph.swapped(graph.kept(x, frames.keep, (2,)))
        with_bias, shape = bias or not batch_norm, [inner, 1, kernel]
        half = kernel // 2
        x = graph.convolution(f"{path}.depthwise", x, shape, with_bias, group=inner, pads=[half, half])
        if batch_norm:
            names = ("weight", "bias", "running_mean", "running_var")
            with graph.module(f"{path}.norm"):
                statistics = [graph.weight(f"{path}.norm.{name}", [inner]) for name in names]
                x = graph.op("BatchNormalization", [x, *statistics], epsilon=NORM_EPSILON)
        return graph.linear(f"{path}.pointwise2", graph.swapped(graph.swish(x)), inner, width, bias)


def subsampling(graph: SpeechGraph, features: ir.Value, lengths: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The states and their lengths that the blocks begin with, before they are scaled."""
    path = "encoder.subsampling"
    with graph.module(path):
        if graph.config.subsampling.kind == "bands":
            return _band_subsampling(graph, path, features, lengths)
        return _image_subsampling(graph, path, features, lengths)


def _band_subsampling(
    graph: SpeechGraph, path: str, features: ir.Value, lengths: ir.Value
) -> tuple[ir.Value, ir.Value]:
    shape = [graph.config.hidden_size, graph.config.front_end.mels, 3]
    x = graph.convolution(f"{path}.convolution", graph.swapped(features), shape, strides=[2], pads=[1, 1])
    return graph.swapped(graph.op("Gelu", [x])), graph.halved(lengths)


def _image_subsampling(
    graph: SpeechGraph, path: str, features: ir.Value, lengths: ir.Value
) -> tuple[ir.Value, ir.Value]:
    config = graph.config
    channels, bands = config.subsampling.channels or config.hidden_size, config.front_end.mels
    last = int(math.log2(config.subsampling.factor)) - 1
    down: dict[str, Any] = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    x = graph.op("Unsqueeze", [features, graph.integers(1)])
    for stage in range(last + 1):
        at = f"{path}.stages.{stage}"
        if not stage and last:
            x = _first_convolution(graph, f"{at}.0", x, channels, lengths, down)
        elif stage and config.subsampling.kind == "separable":
            x = graph.convolution(f"{at}.0", x, [channels, 1, 3, 3], group=channels, **down)
            x = graph.convolution(f"{at}.1", x, [channels, channels, 1, 1])
        else:
            x = graph.convolution(f"{at}.0", x, [channels, channels if stage else 1, 3, 3], **down)
        lengths, bands = graph.halved(lengths), (bands + 1) // 2
        x = graph.op("Relu", [x])
        if 0 < stage < last:
            x = graph.kept(x, graph.valid(lengths, graph.size(x, 2)), (1, 3))
    flat = graph.integers(0, 0, channels * bands)
    x = graph.op("Reshape", [graph.op("Transpose", [x], perm=[0, 2, 1, 3]), flat])
    return graph.linear(f"{path}.linear", x, channels * bands, config.hidden_size), lengths


def _first_convolution(
    graph: SpeechGraph, path: str, x: ir.Value, channels: int, lengths: ir.Value, down: dict[str, Any]
) -> ir.Value:
    """The convolution of `x` [batch, 1, frames, bands], far below zero in the frames behind a row's own.

    ReLU makes them zero, as Where after it would; but that takes a fifth of a small network's time, as ONNX Runtime has
    no Where in the memory layout of its convolutions. So padding is a second channel of the input, whose weight is not
    zero in the centre of the window alone: frame i of the result is padding where frame 2·i of the input is.
    """
    padded = graph.op("Not", [graph.valid(lengths, graph.size(x, 2))])
    padded = graph.op("Cast", [graph.op("Unsqueeze", [padded, graph.integers(1, 3)])], to=graph.dtype)
    padding = graph.op("Expand", [padded, graph.op("Shape", [x])])
    centre = np.zeros([channels, 1, 3, 3], np.float32)
    centre[:, :, 1, 1] = PADDED
    with graph.module(path):
        weight = graph.extended_weight(f"{path}.weight", centre.shape, centre)
        inputs = [graph.op("Concat", [x, padding], axis=1), weight, graph.weight(f"{path}.bias", [channels])]
        return graph.op("Conv", inputs, **down)


def time_reduction(graph: SpeechGraph, path: str, x: ir.Value, frames: Frames) -> ir.Value:
    """The states at half the frame rate."""
    width, kernel = graph.config.hidden_size, REDUCTION_KERNEL
    with graph.module(path):
        x = graph.swapped(graph.kept(x, frames.keep, (2,)))
        pads = [REDUCTION_BEFORE, kernel - REDUCTION_BEFORE]
        x = graph.convolution(f"{path}.depthwise", x, [width, 1, kernel], group=width, strides=[2], pads=pads)
        end = graph.op("Unsqueeze", [graph.halved(frames.size), graph.integers(0)])
        x = graph.op("Slice", [x, graph.integers(0), end, graph.integers(2)])
        return graph.linear(f"{path}.pointwise", graph.swapped(x), width, width)


def time_recovery(graph: SpeechGraph, path: str, x: ir.Value, size: ir.Value) -> ir.Value:
    """Each state twice, the first `size` [] of them, through a linear layer."""
    width = graph.config.hidden_size
    with graph.module(path):
        twice = graph.op("Reshape", [graph.op("Concat", [x, x], axis=2), graph.integers(0, -1, width)])
        end = graph.op("Unsqueeze", [size, graph.integers(0)])
        cropped = graph.op("Slice", [twice, graph.integers(0), end, graph.integers(1)])
        return graph.linear(path, cropped, width, width)
