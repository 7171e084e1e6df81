"""Take a decoder that another tool exported: rewritten to our step, and compared with the original graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import Decoder, Draft, LayerCache
from intaglio.display.progress import step
from intaglio.errors import BundleError, SourceError
from intaglio.exporters.decoders.check import AFTER_PAST, check_decoder, past_tokens, random_past, token_batch
from intaglio.exporters.decoders.foreign.masks import window_of
from intaglio.exporters.decoders.foreign.original import Original
from intaglio.exporters.decoders.foreign.rewrite import Rewriting
from intaglio.exporters.decoders.foreign.settings import Settings, read_settings
from intaglio.exporters.decoders.foreign.site import Site
from intaglio.exporters.reference.check import Checked
from intaglio.runtime.sessions.step import LOGITS
from intaglio.runtime.text.tokenizer import TOKENIZER, Tokenizer

LONGEST = 4096  # tokens of a text, where no file says it and the graph has no table of positions


def rewritten(path: Path, model: ir.Model, places: Sequence[Path], draft: Draft) -> ForeignDecoder | None:
    """Rewrite `model`, which is in the file `path`, to take a step as ours do; None if it has no caches.

    `places`: the folders with its settings; the tokenizer is in the draft. Raises `SourceError` for caches that are
    not understood.
    """
    rewriting = Rewriting(model)
    if not rewriting.sites:
        return None
    if not (draft.path / TOKENIZER).is_file():
        raise SourceError(f"there is no {TOKENIZER} beside it")
    try:
        Tokenizer(draft.path / TOKENIZER, ["input_ids"], None)
    except BundleError as error:
        reason = str(error).replace(f"{draft.path}/", "").partition(". ")[0]
        raise SourceError(f"the file beside it is no tokenizer: {reason}") from error
    decoder = ForeignDecoder(path, model, rewriting.sites, read_settings(places))
    draft.notes += rewriting.rewrite(decoder.inside)
    return decoder


class ForeignDecoder:
    """A decoder in the graph of another tool, the file `path`."""

    def __init__(self, path: Path, model: ir.Model, sites: Sequence[Site], settings: Settings):
        self._original = Original(path, sites)
        positions = settings.max_positions or LONGEST
        self._windows = [_window(site, self._original, positions) for site in sites]
        heads = sites[0].heads or self._original.compute([str(sites[0].queries.name)], AFTER_PAST)[0].shape[1]
        self.decoder = _described(model, sites, self._windows, settings, positions, heads)
        self.dtype = sites[0].dtype.numpy().name
        # Of the layers whose graph applies a window; one that all have is in the mask of a step.
        self.inside = [None if self.decoder.sliding_window else window for window in self._windows]

    def check(self, written: Path, bounds: Bounds, notes: list[str]) -> dict[str, Checked]:
        """Compare the graph `written`, beside its tokenizer, with the original; `notes`: as of `past_tokens`."""
        decoder = self.decoder
        batch = token_batch(written.parent, decoder)
        windows = [window for window in self._windows if window]
        past = past_tokens(decoder, {"the longest window": max(windows)} if windows else {}, notes)
        with step("running the original graph"):
            logits = [self._original.compute([LOGITS], text)[0][0].astype("float32") for text in batch]
            if past:
                after = self._original.compute([LOGITS], AFTER_PAST, past, random_past(decoder, past))
                logits.append(after[0][0].astype("float32"))
        with step("checking against the original graph"):
            return check_decoder(written, decoder, bounds, batch, {LOGITS: logits}, (), past)


def _window(site: Site, original: Original, positions: int) -> int | None:
    """The window of a site, if texts can be longer."""
    window = site.window if site.mask is None and site.causal else window_of(site, original, positions)
    return window if window is None or window < positions else None


def _described(
    model: ir.Model,
    sites: Sequence[Site],
    windows: Sequence[int | None],
    settings: Settings,
    positions: int,
    heads: int,
) -> Decoder:
    """The manifest's entry."""
    logits = next(value for value in model.graph.outputs if value.name == LOGITS)
    if logits.shape is None or not isinstance(vocabulary := logits.shape[-1], int):
        raise SourceError("its logits have no fixed vocabulary")
    for number in (settings.bos_token_id, *settings.eos_token_ids):
        if number is not None and number >= vocabulary:
            raise SourceError(f"a BOS or EOS id beside it is {number}, of {vocabulary} tokens")
    first = sites[0]
    same = len(set(windows)) == 1
    caches = [
        LayerCache(site.kv_heads, site.key_dim, site.value_dim, None if same else window)
        for site, window in zip(sites, windows, strict=True)
    ]
    alike = set(caches) == {LayerCache(first.kv_heads, first.key_dim, first.key_dim)}
    return Decoder(
        layers=len(sites),
        heads=heads,
        kv_heads=first.kv_heads,
        head_dim=first.key_dim,
        vocab_size=vocabulary,
        max_positions=positions,
        bos_token_id=settings.bos_token_id,
        eos_token_ids=settings.eos_token_ids,
        sliding_window=windows[0] if same else None,
        caches=() if alike else tuple(caches),
    )
