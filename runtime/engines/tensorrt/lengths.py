"""The lengths that a bundle's engines accept, and the bundles that they support."""

from __future__ import annotations

from collections.abc import Mapping

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.engines import profiles
from intaglio.runtime.engines.profiles import Range

STEP_TOKENS = 16  # of a text in a step at most: one, or the drafts that are reviewed
PROMPT_TOKENS = 128  # of a prompt, for which its phase is tuned


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


def phases(bundle: Bundle, lengths: Mapping[str, Range], asked: Mapping[str, Range]) -> list[dict[str, Range]]:
    """The lengths of each phase that an engine is tuned for by itself: a decoder's steps, and its prompts.

    Others have one phase, and so has a decoder if somebody asked for numbers of tokens.
    """
    tokens = lengths.get("tokens")
    if bundle.manifest.decoder is None or tokens is None or "tokens" in asked or tokens.maximum <= STEP_TOKENS:
        return [dict(lengths)]
    step = Range(tokens.minimum, tokens.optimum, STEP_TOKENS)
    prompt = Range(tokens.minimum, min(PROMPT_TOKENS, tokens.maximum), tokens.maximum)
    return [{**lengths, "tokens": step}, {**lengths, "tokens": prompt}]


def _fixed(lengths: Mapping[str, Range]) -> dict[str, int]:
    """The axes with a fixed length in a decoder's graph, and the length. Raises `UsageError` for a range of lengths."""
    capacity = lengths["capacity"]
    if capacity.minimum != capacity.maximum:
        raise UsageError("axis capacity: TensorRT needs caches of one fixed length. Give one number.")
    return {"capacity": capacity.maximum}
