"""Export an encoder-decoder by tracing."""

from __future__ import annotations

from typing import Any

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import Decoder, Draft
from intaglio.display.progress import step
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.encoder_decoders.encoder_decoder_bundle import (
    EncoderDecoderParts,
    Part,
    special_tokens,
    write_encoder_decoder,
)
from intaglio.exporters.encoder_decoders.traced.family import TracedEncoderDecoder
from intaglio.exporters.files.config import integer
from intaglio.exporters.reference.check import Checked, check_needed
from intaglio.exporters.reference.source_model import deferred_model, tracing_errors
from intaglio.extras import load

LAYERS = "layers"  # the name of both lists of Transformer blocks


def export_traced_encoder_decoder(
    checkpoint: Checkpoint, family: TracedEncoderDecoder, dtype: str, draft: Draft, bounds: Bounds | None
) -> dict[str, Checked]:
    """Fill `draft` with the two graphs of `checkpoint`, and compare their outputs with the source model's.

    Raises `SourceError` for a checkpoint that is inconsistent or not supported, `UsageError` without `bounds`.
    """
    if bounds is None:
        raise check_needed(f"the graphs of a {family.architecture} are traced", by_layer=True)
    with step("loading the libraries"):
        torch = load("torch")
        load("transformers")
        from intaglio.exporters.encoder_decoders.traced.modules import CrossAttentionModule
        from intaglio.exporters.encoder_decoders.traced.trace import trace
    with step("tracing"):
        model = deferred_model(checkpoint, family.architecture, lambda _: LAYERS)
        config = model.config
        longest = min(_number(_part(config, part), "max_position_embeddings", 2) for part in ("encoder", "decoder"))
        vocabulary = int(model.get_output_embeddings().weight.shape[0])
        tokens = special_tokens(checkpoint, config.to_dict(), vocabulary)
        parameters = sum(each.numel() for each in model.parameters())
        blocks = [
            path
            for path, each in model.named_modules()
            if path.endswith(f".{LAYERS}") and isinstance(each, torch.nn.ModuleList)
        ]
        with tracing_errors(checkpoint, family.architecture):
            encoder, decoder = trace(CrossAttentionModule(model), getattr(torch, dtype), longest)
        del model
    parts = EncoderDecoderParts(
        Part(encoder.model, encoder.layers),
        Part(decoder.model, decoder.layers),
        _describe(config, decoder.caches, vocabulary, longest),
        tokens,
        blocks,
        parameters,
        [encoder.rounding, decoder.rounding],
        longest,
    )
    unused = set(encoder.unused) & set(decoder.unused)
    if unused:
        raise SourceError(
            f"{checkpoint.folder}: its graphs do not use {len(unused)} weights ({min(unused)}…), so it is not "
            "supported. Export a similar model."
        )
    return write_encoder_decoder(parts, checkpoint, family, config.to_dict(), dtype, draft, bounds)


def _part(config: Any, part: str) -> Any:
    """The configuration of the encoder or the decoder, which may be a part of the model's."""
    return getattr(config, part, None) or config.get_text_config(**{part: True})


def _number(config: Any, name: str, least: int) -> int:
    return integer({name: getattr(config, name, None)}, name, least)


def _describe(config: Any, caches: dict[int, tuple[int, int, int]], vocabulary: int, longest: int) -> Decoder:
    """The manifest's entry for the decoder, from the caches that it was seen to write."""
    heads, key_dim, _ = caches[0]
    if set(caches) != set(range(len(caches))) or set(caches.values()) != {(heads, key_dim, key_dim)}:
        raise SourceError(
            "config.json: the layers of its decoder have caches of different shapes. Export another model."
        )
    return Decoder(
        layers=len(caches),
        heads=_number(_part(config, "decoder"), "num_attention_heads", 1),
        kv_heads=heads,
        head_dim=key_dim,
        vocab_size=vocabulary,
        max_positions=longest,
    )
