"""The measure of a reranker: the order of the documents of each query."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intaglio.validation.measures.measures import Scores, Vectors, rank_correlation


class Rankings(Scores):
    """The scores of a batch, which is of one query; see `pairs_of`."""

    names = ("score_error", "rank_correlation")

    def _results(self, parts: Sequence[tuple[Vectors, Vectors]]) -> dict[str, float]:
        """The scores' error, and Spearman's correlation, the mean over documents; 1 if no query has several.

        The order of one document, and that of a NaN, does not exist.
        """
        several = [tuple(scores.reshape(-1) for scores in part) for part in parts if part[0].size > 1]
        orders = [rank_correlation(*each) if np.isfinite(each[0]).all() else float("nan") for each in several]
        order = float(np.average(orders, weights=[len(found) for found, _ in several])) if orders else 1.0
        return super()._results(parts) | {"rank_correlation": order}
