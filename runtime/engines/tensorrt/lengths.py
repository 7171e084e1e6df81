"""The lengths that a bundle's engines accept, and the bundles that they support."""

from __future__ import annotations

from collections.abc import Mapping

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.engines import profiles
from intaglio.runtime.engines.profiles import Range


def check_supported(bundle: Bundle, target: str) -> None:
    """Raise `UsageError` for a bundle that TensorRT does not support."""
    if bundle.manifest.decoder is not None and bundle.manifest.decoder.saturation_exits:
        raise UsageError(
            f"target {target}: bundle {bundle.path} has an exit after every block, whose If branches this target "
            "does not support. Use --target ort-cpu."
        )
    if bundle.manifest.transcriber is not None:
        raise UsageError(
            f"target {target}: bundle {bundle.path} is an encoder-decoder for recordings, which is not built for "
            "this target yet. Use --target ort-cpu."
        )


def engine_lengths(bundle: Bundle, asked: Mapping[str, Range]) -> tuple[dict[str, Range], dict[str, int]]:
    """The lengths of each symbolic axis of the bundle's graphs, and the axes that have one length in the graphs.

    `asked`: what somebody wants, axis -> lengths. Raises `UsageError` for lengths that the bundle does not accept.
    """
    graphs = bundle.manifest.graphs
    axes = {name: axis for graph in graphs for name, axis in graph.axes.items()}  # shared by name
    if bundle.manifest.decoder is not None:
        asked = profiles.decoding(bundle.manifest.decoder, asked)
    if bundle.manifest.audio is not None:
        asked = profiles.listening(bundle.manifest.audio, axes, asked)
    lengths = profiles.ranges([spec for graph in graphs for spec in graph.inputs], axes, asked)
    return lengths, {} if bundle.manifest.decoder is None else _fixed(lengths)


def _fixed(lengths: Mapping[str, Range]) -> dict[str, int]:
    """The axes with a fixed length in a decoder's graph, and the length. Raises `UsageError` for a range of lengths."""
    capacity = lengths["capacity"]
    if capacity.minimum != capacity.maximum:
        raise UsageError("axis capacity: TensorRT needs caches of one fixed length. Give one number.")
    return {"capacity": capacity.maximum}
