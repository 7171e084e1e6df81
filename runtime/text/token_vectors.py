"""A vector for each token of a text, as ColBERT has it: queries that are filled up, and the score of a document.

The oracle is sentence-transformers' MultiVectorEncoder: `encode_query`, `encode_document`, and `maxsim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from intaglio.bundle.manifest import LONGEST, MANIFEST
from intaglio.bundle.text_records import TokenVectors
from intaglio.errors import BundleError

WITHOUT_VECTORS = -1e9  # the score of a document none of whose tokens has a vector, as in the library

Vectors = npt.NDArray[np.float32]


def check_vectors(settings: TokenVectors | None, bundle: Path) -> None:
    """Raise `BundleError` for numbers of an untrusted bundle.json in the folder `bundle` that are out of range."""
    if settings is None:
        return
    lengths = settings.query_length, settings.expanded_to
    tokens = (settings.expansion_token, *settings.skipped)
    if not 1 <= lengths[0] <= LONGEST or not 0 <= lengths[1] <= lengths[0] or min(tokens) < 0:
        raise BundleError(f"{bundle / MANIFEST}: vectors has invalid lengths or tokens. Re-export the bundle.")


def filled_up(ids: Sequence[int], settings: TokenVectors, query: bool) -> list[int]:
    """The tokens of a text; a short query is filled up."""
    missing = settings.expanded_to - len(ids) if query else 0
    return [*ids, *[settings.expansion_token] * missing]


def places(ids: Sequence[int], settings: TokenVectors, query: bool) -> list[int]:
    """The places of the tokens of a query or a document that have a vector."""
    skips = settings.skips_queries if query else settings.skips_documents
    skipped = set(settings.skipped) if skips else set()
    return [place for place, token in enumerate(ids) if token not in skipped]


def maxsim(query: Vectors, document: Vectors, mean: bool) -> float:
    """The sum, or the mean, of the largest product of each vector of `query` with one of `document`.

    Both are [tokens, width].
    """
    if not len(document):
        return WITHOUT_VECTORS
    found = (query @ document.T).max(axis=1).astype(np.float64)
    return float(found.mean() if mean else found.sum())
