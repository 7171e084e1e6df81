"""Decoding strategies. One strategy, one file; this is the only list of them."""

from collections.abc import Mapping

from intaglio.runtime.strategies.auto import Auto
from intaglio.runtime.strategies.bild import BigLittleDecoder
from intaglio.runtime.strategies.calm import Calm
from intaglio.runtime.strategies.contract import (
    CachedModel,
    Calls,
    Emitted,
    EncodeSource,
    Forward,
    GeneratedSequence,
    Seconds,
    Strategy,
    Tokens,
)
from intaglio.runtime.strategies.draft_tree import DraftTree, HiddenTransfer, Medusa
from intaglio.runtime.strategies.ngram import NGram
from intaglio.runtime.strategies.plain import Plain
from intaglio.runtime.strategies.speculative import Speculative

STRATEGIES: Mapping[str, type[Strategy]] = {
    "greedy": Plain,
    "sample": Plain,
    "bild": BigLittleDecoder,
    "speculative": Speculative,
    "ngram": NGram,
    "hidden-transfer": HiddenTransfer,
    "medusa": Medusa,
    "calm": Calm,
    "auto": Auto,
}

__all__ = [
    "STRATEGIES",
    "Auto",
    "BigLittleDecoder",
    "CachedModel",
    "Calls",
    "Calm",
    "DraftTree",
    "Emitted",
    "EncodeSource",
    "Forward",
    "GeneratedSequence",
    "NGram",
    "Plain",
    "Seconds",
    "Speculative",
    "Strategy",
    "Tokens",
]
