"""The front end of Whisper in a graph: samples to log-mel features."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intaglio.bundle.bundle import TensorSpec
from intaglio.errors import SourceError
from intaglio.exporters.files.config import integer
from intaglio.exporters.speech.traced.feature_extractor import check_settings, extractor_settings
from intaglio.exporters.writing.front_end_writer import FrontEndWriter
from intaglio.exporters.writing.graph_writer import IR_VERSION, graph_input
from intaglio.networks.speech.configuration import FrontEnd
from intaglio.networks.speech.spectrum import mel_filters, waves
from intaglio.runtime.speech.whisper.log_mel import AUDIO, LOG_MEL
from intaglio.version import __version__

PATH = "front_end"
EXTRACTOR = "WhisperFeatureExtractor"
RATE = 16_000  # Hz; the library's highest band ends at 8,000 Hz for every rate
FLOOR = 1e-10  # of the power in a band
# What a file may say beside what is read: both follow from the other settings, and are computed by the library again.
COMPUTED = {"mel_filters", "n_samples", "nb_max_frames"}
LARGEST = {"feature_size": 512, "n_fft": 8192, "hop_length": 4096, "chunk_length": 600}


@dataclass(frozen=True)
class LogMel:
    """The settings of the front end."""

    bands: int
    window: int  # samples
    hop: int  # samples
    seconds: int  # that the encoder reads at once

    @property
    def frames(self) -> int:
        """The frames that the encoder reads at once."""
        return self.seconds * RATE // self.hop


def read_log_mel(folder: Path) -> LogMel:
    """The feature extractor of the checkpoint in `folder`. Raises `SourceError` if it is missing, or another one."""
    file, given = extractor_settings(folder, EXTRACTOR)
    defaults = {"feature_size": 80, "n_fft": 400, "hop_length": 160, "chunk_length": 30}
    numbers = {key: integer(given, key, 1, default, str(file)) for key, default in defaults.items()}
    for key, number in numbers.items():
        if number > LARGEST[key]:
            raise SourceError(f"{file}: {key} is {number}, expected at most {LARGEST[key]}. Fix it.")
    check_settings(file, given, {*numbers, *COMPUTED}, {"sampling_rate": RATE, "dither": 0})
    if numbers["hop_length"] > numbers["n_fft"] or numbers["n_fft"] % 2:
        raise SourceError(f"{file}: n_fft is {numbers['n_fft']}, expected an even number from hop_length on. Fix it.")
    return LogMel(numbers["feature_size"], numbers["n_fft"], numbers["hop_length"], numbers["chunk_length"])


def front_end(settings: LogMel) -> ir.Model:
    """The graph from `audio` float32 [batch, samples] to `log_mel` float32 [batch, bands, frames].

    The samples are mirrored at both ends before; the largest value of the whole recording limits the features later:
    see `runtime.speech.whisper.log_mel`. Both linear steps are convolutions, as in the front ends of other recognisers.
    """
    audio = graph_input(TensorSpec(AUDIO, "float32", ("batch", "samples")))
    graph = ir.Graph([audio], [], nodes=[], opset_imports={"": 23}, name=PATH)
    writer = FrontEndWriter(graph, PATH)
    config = FrontEnd(window=settings.window, hop=settings.hop, fft_size=settings.window, periodic_window=True)
    x = writer.op("Unsqueeze", [audio, writer.constant("channel", [1])])
    x = writer.op("Conv", [x, writer.constant("waves", waves(config), np.float32)], strides=[settings.hop])
    squares = writer.op("Mul", [x, x])
    filters = mel_filters(RATE, settings.window, settings.bands)
    filters = np.concatenate([filters, filters], axis=1)[..., None]  # of cosines and sines alike: power is their sum
    bands = writer.op("Conv", [squares, writer.constant("mel_filters", filters, np.float32)])
    logs = writer.op("Log", [writer.op("Max", [bands, writer.constant("floor", FLOOR, np.float32)])])
    found = writer.op("Mul", [logs, writer.constant("to_base_10", 1 / np.log(10), np.float32)])
    found.name, found.dtype = LOG_MEL, ir.DataType.FLOAT
    found.shape = ir.Shape(["batch", settings.bands, "frames"])
    graph.extend(writer.nodes)
    graph.outputs.append(found)
    return ir.Model(graph, ir_version=IR_VERSION, producer_name="intaglio", producer_version=__version__)
