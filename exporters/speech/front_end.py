"""The front end in a graph: a waveform to log-mel features; in torch it is `intaglio.networks.speech.front_end`."""

from __future__ import annotations

import onnx_ir as ir

from intaglio.exporters.speech.graph import FLOAT, SpeechGraph
from intaglio.networks.speech.configuration import FrontEnd
from intaglio.networks.speech.constants import DEVIATION_EPSILON
from intaglio.networks.speech.spectrum import mel_filters, waves

PATH = "front_end"


def log_mel(graph: SpeechGraph) -> tuple[ir.Value, ir.Value]:
    """Features float32 [batch, frames, mels] of the graph's signal, and the frames int64 [batch] of each row."""
    config = graph.config.front_end
    with graph.module(PATH):
        frames = graph.op("Div", [graph.lengths, graph.integer(config.hop)])
        if config.last_frame:
            frames = graph.op("Add", [frames, graph.integer(1)])
        logs = _logarithms(graph, config)
        if not config.last_frame:
            whole = graph.op("Div", [graph.size(graph.signal, 1), graph.integer(config.hop)])
            end = graph.op("Unsqueeze", [whole, graph.integers(0)])
            logs = graph.op("Slice", [logs, graph.integers(0), end, graph.integers(1)])
        keep = graph.valid(frames, graph.size(logs, 1))
        if config.normalize:
            logs = _normalised(graph, logs, keep, frames)
        return graph.kept(logs, keep, (2,), FLOAT), frames


def _logarithms(graph: SpeechGraph, config: FrontEnd) -> ir.Value:
    """The logarithm of the power in each band, [batch, samples // hop + 1, mels]."""
    half = config.window // 2
    keep = graph.valid(graph.lengths, graph.size(graph.signal, 1))
    x = graph.op("Unsqueeze", [graph.signal, graph.integers(1)])
    if config.preemphasis:
        taps = graph.constant("preemphasis", [[[-config.preemphasis, 1.0]]], FLOAT)
        x = graph.op("Conv", [x, taps], pads=[1, 0])
    x = graph.kept(x, keep, (1,), FLOAT)
    pads = [half, half]
    if config.padding == "reflect":
        x, pads = _mirrored(graph, x, half), [0, 0]
    sinusoids, filters = _constants(graph, config)
    spectrum = graph.op("Conv", [x, sinusoids], strides=[config.hop], pads=pads)
    real, imaginary = graph.ops("Split", [spectrum], 2, axis=1, num_outputs=2)
    power = graph.op("Add", [graph.op("Mul", [real, real]), graph.op("Mul", [imaginary, imaginary])])
    bands = graph.swapped(graph.op("Conv", [power, filters]))
    guard = "Add" if config.guard == "add" else "Max"
    return graph.op("Log", [graph.op(guard, [bands, graph.number(config.floor, FLOAT)])])


def _constants(graph: SpeechGraph, config: FrontEnd) -> tuple[ir.Value, ir.Value]:
    """The window's waves [2 · bins, 1, window], and the filters of the bands [mels, bins, 1].

    Both are convolutions: for T4, TensorRT-RTX has those in float32, but no products of matrices.
    """
    bins = config.fft_size // 2 + 1
    if config.constants == "stored":
        filters = graph.weight(f"{PATH}.filters", [config.mels, bins], dtype=FLOAT)
        stored = graph.weight(f"{PATH}.waves", [2 * bins, 1, config.window], dtype=FLOAT)
        return stored, graph.op("Unsqueeze", [filters, graph.integers(2)])
    computed = mel_filters(config.sample_rate, config.fft_size, config.mels)
    return graph.constant("waves", waves(config), FLOAT), graph.constant("mel_filters", computed[..., None], FLOAT)


def _mirrored(graph: SpeechGraph, x: ir.Value, half: int) -> ir.Value:
    """`x` [batch, 1, samples] with `half` samples mirrored at both ends of each row's own samples."""
    padded = graph.op("Add", [graph.size(graph.signal, 1), graph.integer(2 * half)])
    index = graph.op("Abs", [graph.op("Sub", [graph.indices(padded), graph.integer(half)])])
    last = graph.op("Unsqueeze", [graph.op("Sub", [graph.lengths, graph.integer(1)]), graph.integers(1, 2)])
    beyond = graph.op("Sub", [graph.op("Mul", [last, graph.integer(2)]), index])
    index = graph.op("Where", [graph.op("Greater", [index, last]), beyond, index])
    return graph.op("GatherElements", [x, graph.op("Max", [index, graph.integer(0)])], axis=2)


def _normalised(graph: SpeechGraph, logs: ir.Value, keep: ir.Value, frames: ir.Value) -> ir.Value:
    """Each band with mean 0 and deviation 1 over the row's own frames."""
    one, time = graph.number(1.0, FLOAT), graph.integers(1)
    count = graph.op("Cast", [graph.op("Unsqueeze", [frames, graph.integers(1, 2)])], to=FLOAT)

    def mean(x: ir.Value, number: ir.Value) -> ir.Value:
        total = graph.op("ReduceSum", [x, time], keepdims=1)
        return graph.op("Div", [total, graph.op("Max", [number, one])])

    centred = graph.op("Sub", [logs, mean(graph.kept(logs, keep, (2,), FLOAT), count)])
    centred = graph.kept(centred, keep, (2,), FLOAT)
    variance = mean(graph.op("Mul", [centred, centred]), graph.op("Sub", [count, one]))
    deviation = graph.op("Add", [graph.op("Sqrt", [variance]), graph.number(DEVIATION_EPSILON, FLOAT)])
    return graph.op("Div", [centred, deviation])
