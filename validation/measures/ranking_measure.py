"""The measure of a reranker: the order of the documents of each query."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from intaglio.runtime.engines.engine import Array
from intaglio.validation.measures.measures import Scores, rank_correlation


class Rankings(Scores):
    """The scores of a batch, which is of one query; see `pairs_of`."""

    names = ("score_error", "rank_correlation")

    def __init__(self) -> None:
        super().__init__()
        self._orders: list[float] = []
        self._weights: list[int] = []

    def _add(self, feeds: Mapping[str, Array], actual: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
        """Keep the scores, and compare their order; that of one document, and that of a NaN, does not exist."""
        super()._add(feeds, actual, expected)
        found, wanted = (outputs["logits"].astype(np.float64).reshape(-1) for outputs in (actual, expected))
        if len(found) > 1:
            self._orders.append(rank_correlation(found, wanted) if np.isfinite(found).all() else float("nan"))
            self._weights.append(len(found))

    def _results(self) -> dict[str, float]:
        """The scores' error, and Spearman's correlation, the mean over documents; 1 if no query has several."""
        order = float(np.average(self._orders, weights=self._weights)) if self._orders else 1.0
        return super()._results() | {"rank_correlation": order}
