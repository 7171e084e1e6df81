"""The ways to choose the next tokens. One strategy, one file; this is the one list of them."""

from collections.abc import Mapping

from intaglio.runtime.strategies.contract import Calls, Counts, Decoding, Strategy
from intaglio.runtime.strategies.plain import Plain

STRATEGIES: Mapping[str, type[Strategy]] = {"greedy": Plain, "sample": Plain}

__all__ = ["STRATEGIES", "Calls", "Counts", "Decoding", "Strategy"]
