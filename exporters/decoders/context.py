"""Rotary embeddings whose frequencies depend on the length of the text: one of the two sets is chosen at the export.

`transformers` chooses by the longest row of a batch, so that one text would change another's, and a text that grows
beyond the border would need all of its cached keys again. With one set a graph is exact within that set's lengths.
"""

from __future__ import annotations

from typing import Any

from intaglio.errors import SourceError, UsageError

SHORT, LONG = "short", "long"
CONTEXTS = (SHORT, LONG)
ORIGINAL = "original_max_position_embeddings"


def switching_kind(config: Any) -> str:
    """The kind of rotary embedding of a text model that has two sets of frequencies; "" if it has one."""
    return next((kind for each in _settings(config) if switches(kind := str(each.get("rope_type", "")))), "")


def switches(kind: str) -> bool:
    """Whether rotary embeddings of a kind have other frequencies for long texts."""
    return kind == "longrope" or "dynamic" in kind


def check_context(config: Any, context: str | None, where: str) -> None:
    """Raise `UsageError` or `SourceError` unless `context` is given where it decides, and can be exact."""
    kind = switching_kind(config)
    if context is not None and context not in CONTEXTS:
        raise UsageError(f"context {context!r}: expected one of {', '.join(CONTEXTS)}.")
    if context is not None and not kind:
        raise UsageError("--context is for rotary embeddings of type longrope or dynamic; this has another. Remove it.")
    if kind and context is None:
        others = f" or --context {LONG}" if kind == "longrope" else ""
        raise SourceError(
            f"{where}: config.json: rotary embeddings of type {kind!r} have other frequencies for texts of more than "
            f"{border(config)} tokens. Choose those of your texts: --context {SHORT}{others}."
        )
    if context == LONG and kind != "longrope":
        raise SourceError(
            f"{where}: config.json: the frequencies of rotary embeddings of type {kind!r} change with each token of a "
            f"long text, so that the cached keys would be wrong. Export it for short texts: --context {SHORT}."
        )


def border(config: Any) -> int:
    """The tokens up to which a text has the frequencies of short ones."""
    original = next((each[ORIGINAL] for each in _settings(config) if each.get(ORIGINAL)), None)
    return int(original if original and switching_kind(config) == "longrope" else config.max_position_embeddings)


def fix_frequencies(model: Any, context: str | None) -> None:
    """Let the rotary embeddings of a `transformers` model use the frequencies of one context for any length."""
    if context is None:
        return
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str):
            if context == LONG and kinds == "longrope":
                module.inv_freq, _ = ROPE_INIT_FUNCTIONS[kinds](module.config, seq_len=border(module.config) + 1)
            module.rope_type = "default"  # which transformers does not change


def _settings(config: Any) -> list[dict[str, Any]]:
    """The settings of the rotary embedding: one, or one for each kind of layers."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [rope] if "rope_type" in rope else [each for each in rope.values() if isinstance(each, dict)]
