"""The options with which a target's engine is opened."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from intaglio.bundle.bundle import MODEL
from intaglio.runtime.adapters.adapters import Adapters


@dataclass(frozen=True)
class Opening:
    """How to open a graph. Each target uses the options that apply to it."""

    threads: int | None = None  # processor threads
    spinning: bool = True  # idle worker threads busy-wait
    outputs: Collection[str] | None = None  # outputs to compute; None: all
    graph: str = MODEL  # the bundle's ONNX file to run
    adapters: Adapters | None = None  # to add beside the products of a bundle's graph
    cache_bits: int | None = None  # of a decoder's cached keys and values, 8 or 4; None: as the graph has them
