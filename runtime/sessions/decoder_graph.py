"""What the graph of a decoder gives, by name, and the decoder that a bundle says it is."""

from __future__ import annotations

from intaglio.bundle import Bundle, Decoder
from intaglio.errors import BundleError

LOGITS = "logits"
DRAFT_LOGITS = "draft_logits"  # the output of graphs that draft
EXIT_LOGITS = "exit_logits"  # the output of graphs with an early exit
EXIT_THRESHOLDS, BLOCKS_RUN = "exit_thresholds", "blocks_run"  # of graphs that stop computing saturated tokens


def needed_outputs(decoder: Decoder) -> list[str] | None:
    """The outputs that a session of the whole model takes; None: all that the graph has."""
    return [LOGITS, *cache_outputs(decoder.layers)] if decoder.exit_layer else None


def cache_outputs(layers: int) -> list[str]:
    """The outputs that are the caches of the first `layers` blocks."""
    return [f"present_{kind}_{index}" for index in range(layers) for kind in ("key", "value")]


def decoder_of(bundle: Bundle) -> Decoder:
    """The decoder that a bundle holds. Raises `BundleError` when it holds something else."""
    if bundle.manifest.decoder is None or bundle.manifest.encoder is not None:
        raise BundleError(
            f"bundle {bundle.path}: its task is {bundle.manifest.task or 'unknown'!r}, not 'generate'. "
            "Export a decoder, such as GPT2LMHeadModel or LlamaForCausalLM."
        )
    return bundle.manifest.decoder
