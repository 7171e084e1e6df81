"""The description of an architecture of speech recognisers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from intaglio.exporters.checkpoints.family import Family
from intaglio.exporters.speech.graph import SpeechGraph


@dataclass(frozen=True)
class SpeechFamily(Family):
    """An architecture: its names in config.json, and the function that writes its encoder.

    `build(graph, features, lengths)` takes features [batch, frames, mels] in the graph's dtype and their frames int64
    [batch]; it returns states [batch, fewer frames, width] and their lengths.
    """

    build: Callable[[SpeechGraph, ir.Value, ir.Value], tuple[ir.Value, ir.Value]]
