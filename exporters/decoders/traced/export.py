"""Export a decoder by tracing: from its checkpoint to the graph, the manifest, the comparison with the source model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import structs

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import Decoder, Draft, LayerCache
from intaglio.display.progress import step
from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.quantized.formats import kept
from intaglio.exporters.checkpoints.tokenizer_files import write_decoder_tokenizer
from intaglio.exporters.decoders.check import check_decoder, past_tokens, token_batch
from intaglio.exporters.decoders.context import SHORT, border, check_context, fix_frequencies
from intaglio.exporters.decoders.decoder_bundle import with_ends, with_trained, write_decoder
from intaglio.exporters.decoders.reference import source_outputs
from intaglio.exporters.decoders.traced.family import TracedFamily
from intaglio.exporters.files.config import integer
from intaglio.exporters.reference.check import Checked, block_outputs, check_needed
from intaglio.exporters.reference.source_model import deferred_model, tracing_errors
from intaglio.extras import load
from intaglio.networks.drafts import HIDDEN_TRANSFER, MATRICES, RECORD, matrix_path, unsuited
from intaglio.networks.layer_kinds import CHUNKED, SLIDING, layer_kinds
from intaglio.networks.positions import first_position

if TYPE_CHECKING:
    from intaglio.exporters.decoders.traced.trace import TracedGraph


NUMBERS = ("num_hidden_layers", "num_attention_heads", "max_position_embeddings")
BORDERS = ("sliding_window", "attention_chunk_size", "floor_scale")  # numbers of tokens after which a layer may change


class PartBeside(Protocol):
    """The part of a model that reads images, beside its decoder: see `exporters.image_text`."""

    width: int  # of an embedding

    def trace(self, model: Any, dtype: Any) -> TracedGraph:
        """Trace `model`, whose parameters are `DeferredTensor`s and are consumed; return the graph of its decoder."""
        ...

    def add(
        self, architecture: str, draft: Draft, bounds: Bounds, cuts: Sequence[str], context: str | None
    ) -> dict[str, Checked]:
        """Add the traced part to a draft that has the decoder, and compare both with the source model."""
        ...


def export_traced_decoder(
    checkpoint: Checkpoint,
    family: TracedFamily,
    dtype: str,
    draft: Draft,
    bounds: Bounds | None,
    context: str | None = None,
    beside: Callable[[Checkpoint, Any], PartBeside] | None = None,
) -> dict[str, Checked]:
    """Fill `draft` with the decoder of `checkpoint`; with `bounds`, compare its logits with the source model's.

    `context`: "short" or "long", for rotary embeddings with other frequencies for long texts. `beside`: returns the
    part of the checkpoint that reads images, from its configuration in `transformers`.

    Raises `SourceError` for a checkpoint that is inconsistent or not supported, `UsageError` without `bounds`.
    """
    with step("loading the libraries"):
        torch = load("torch")
        load("transformers")
        from intaglio.exporters.checkpoints.deferred import DeferredTensor
        from intaglio.exporters.decoders.traceable_decoder import trained_module
        from intaglio.exporters.decoders.traced.trace import trace
        from intaglio.networks.blocks import blocks_path
    with step("tracing"):
        model = deferred_model(checkpoint, family.architecture, blocks_path)
        config, blocks = model.config, blocks_path(model)
        check_context(config.get_text_config(), context, str(checkpoint.folder))
        _check_drafts(checkpoint, model)
        _check_settings(checkpoint, model)
        if bounds is None and not family.proven:
            raise check_needed(f"the graph of a {family.architecture} is traced", by_layer=True)
        fix_frequencies(model, context)
        vocabulary = int(model.get_output_embeddings().weight.shape[0])
        write_decoder_tokenizer(checkpoint, draft.path, vocabulary)  # before minutes of tracing: it may be refused
        images = beside(checkpoint, config) if beside is not None else None
        with tracing_errors(checkpoint, family.architecture):
            if images is not None:
                graph = images.trace(model, getattr(torch, dtype))
            else:
                graph = trace(trained_module(checkpoint, model, DeferredTensor.of), getattr(torch, dtype))
        start = first_position(model)
        del model
    decoder = with_ends(
        describe(config.get_text_config(), graph.caches, vocabulary, start, context), checkpoint, config.to_dict()
    )
    drafts, exits = checkpoint.drafts(decoder.layers), checkpoint.early_exit(decoder.layers)
    decoder = with_trained(decoder, drafts, exits)
    decoder = structs.replace(decoder, image_width=images.width if images else 0)
    if bounds is None:
        _write(graph, checkpoint, family, decoder, dtype, draft)
        return {}
    batch = token_batch(draft.path, decoder)
    with step("running the source model"):
        past = _past(config.get_text_config(), decoder, draft.notes)
        cached = sorted(graph.caches)
        expected = source_outputs(checkpoint, family.architecture, decoder, batch, cached, past, context)
    _write(graph, checkpoint, family, decoder, dtype, draft)
    with step("checking against the source model"):
        cuts = block_outputs(graph.layers, [blocks])
        checked = check_decoder(draft.model_path, decoder, bounds, batch, expected, cuts, past)
    return checked | (images.add(family.architecture, draft, bounds, cuts, context) if images else {})


def _check_drafts(checkpoint: Checkpoint, model: Any) -> None:
    """Raise `SourceError` for drafts that a model's layers cannot compute, or whose matrices have another shape."""
    config = model.config.get_text_config()
    drafts = checkpoint.drafts(config.num_hidden_layers)
    if drafts is None:
        return
    if reason := unsuited(drafts.kind, config):
        raise SourceError(
            f"{checkpoint.folder}: has {drafts.kind} drafts, but {reason} Or remove {RECORD} and {MATRICES}."
        )
    width = config.hidden_size if drafts.kind == HIDDEN_TRANSFER else int(model.get_output_embeddings().weight.shape[1])
    matrices = checkpoint.draft_tensors()
    for name in (f"{matrix_path(index)}.weight" for index in range(drafts.steps)):
        shape = list(matrices[name].shape) if name in matrices else None
        if shape != [width, width]:
            raise SourceError(
                f"{checkpoint.folder}: {MATRICES}: {name} ({f'got {shape}' if shape else 'missing'}, expected "
                f"{[width, width]}). Copy the whole folder again, or train the drafts again."
            )


def _check_settings(checkpoint: Checkpoint, model: Any) -> None:
    """Raise `SourceError` for settings of config.json with which a trace, or its numbers, would be wrong."""
    config = model.config.get_text_config()
    if getattr(config, "add_cross_attention", False):
        raise SourceError(
            f"{checkpoint.folder}: add_cross_attention is true in config.json, expected false (no encoder). Export a "
            "decoder of its own."
        )
    kinds = layer_kinds(config)
    for name, kind in (("sliding_window", SLIDING), ("attention_chunk_size", CHUNKED)):
        length = getattr(config, name, None)
        empty = isinstance(length, int) and length < 1
        if (empty and kind in (kinds or (SLIDING,))) or (length is None and kind in kinds):
            stated = "null" if length is None else length
            expected = f"1 or more tokens for {kind} of layer_types" if kinds else "1 or more tokens, or null for none"
            raise SourceError(f"{checkpoint.folder}: {name} is {stated} in config.json, expected {expected}. Fix it.")
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq") and not (buffer.isfinite() & (buffer >= 0)).all():
            raise SourceError(
                f"{checkpoint.folder}: the rotary embeddings of config.json have frequencies below 0 or that are no "
                "numbers: expected a rope_theta and factors above 0. Fix rope_parameters."
            )


def describe(
    config: Any, caches: dict[int, tuple[int, int, int]], vocab_size: int, start: int, context: str | None
) -> Decoder:
    """The manifest's entry, from the configuration of the text model and the caches that it was seen to write.

    The configuration knows its numbers by the same names in all families, and in a file by those of its own. `start` is
    the position at which a text begins.
    """
    numbers = {name: getattr(config, name, None) for name in NUMBERS}
    layers = [
        LayerCache(heads, key_dim, value_dim, _window(config, index))
        for index, (heads, key_dim, value_dim) in sorted(caches.items())
    ]
    first, depth = layers[0], integer(numbers, "num_hidden_layers", 1)
    positions = integer(numbers, "max_position_embeddings", start + 2)
    alike = len(layers) == depth and set(layers) == {LayerCache(first.heads, first.key_dim, first.key_dim)}
    return Decoder(
        layers=depth,
        heads=integer(numbers, "num_attention_heads", 1),
        kv_heads=first.heads,
        head_dim=first.key_dim,
        vocab_size=vocab_size,
        max_positions=border(config) if context == SHORT else positions - start,
        context=context or "",
        caches=() if alike else tuple(layers),
    )


def _window(config: Any, layer: int) -> int | None:
    """The window of a layer, which is in the graph."""
    window, kinds = getattr(config, "sliding_window", None), layer_kinds(config)
    return window if isinstance(window, int) and (not kinds or kinds[layer] == SLIDING) else None


def _past(config: Any, decoder: Decoder, notes: list[str]) -> int:
    """Tokens in the cache when the check crosses windows."""
    borders = {name: border for name in BORDERS if isinstance(border := getattr(config, name, None), int)}
    return past_tokens(decoder, borders, notes)


def _write(
    graph: TracedGraph, checkpoint: Checkpoint, family: TracedFamily, decoder: Decoder, dtype: str, draft: Draft
) -> None:
    """Write the graph and the manifest into the draft; note the weights that the graph leaves out, or has as codes."""
    write_decoder(
        graph.model, graph.layers, graph.rounding, checkpoint, family, decoder, dtype, draft, graph.parameters
    )
    if graph.unused:
        parts = sorted({".".join(path.split(".")[:2]) for path in graph.unused})
        draft.notes.append(f"text does not use {len(graph.unused)} weights, which are left out: of {', '.join(parts)}")
    draft.notes += kept(checkpoint.parameters(), checkpoint.config)
    if graph.decoded:
        names = ", ".join(graph.decoded[:3]) + (f" and {len(graph.decoded) - 3} more" if len(graph.decoded) > 3 else "")
        draft.notes.append(f"of these, stored in {dtype}, as looked up or in groups below 32: {names}")
