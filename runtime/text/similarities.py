"""Similarity of texts: by default the cosines of their embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.manifest import SIMILARITIES
from intaglio.errors import UsageError
from intaglio.runtime.text.run_texts import run
from intaglio.runtime.text.tasks import EMBEDDING_TASKS

Numbers = npt.NDArray[np.float64]

MOST = 1000  # texts; these have a million cosines


class Similarity(msgspec.Struct, eq=False):
    """Texts, and the similarity of the embeddings of every pair of them."""

    texts: list[str]
    similarity: npt.NDArray[np.float64]  # [texts, texts], symmetric; cosines are from -1 to 1
    function: str = SIMILARITIES[0]  # the model's: "cosine", "dot", or minus the distance, "euclidean" or "manhattan"

    def pairs(self) -> Iterator[tuple[float, str, str]]:
        """Every pair of texts once with its similarity, the most similar first."""
        first, second = np.triu_indices(len(self.texts), 1)
        for place in np.argsort(-self.similarity[first, second], kind="stable"):
            a, b = int(first[place]), int(second[place])
            yield float(self.similarity[a, b]), self.texts[a], self.texts[b]


def similarity(
    bundle: str | Path | Bundle,
    texts: Iterable[str],
    target: str = "ort-cpu",
    batch_size: int = 32,
    truncate: bool = False,
    threads: int | None = None,
    prompt_name: str | None = None,
    truncate_dim: int | None = None,
) -> Similarity:
    """Embed `texts`, at most `MOST`, and compare all pairs. The options: see `run`.

    Raises `UsageError` for a bundle without embeddings, for fewer than two texts and for too many, and the errors of
    `run`.
    """
    opened = Bundle.open(bundle)
    if (task := opened.manifest.task) not in EMBEDDING_TASKS:
        raise UsageError(
            f"--similarity compares embeddings; the task of bundle {opened.path} is {task or 'unknown'!r}, expected "
            f"{' or '.join(EMBEDDING_TASKS)}. Leave --similarity out."
        )
    some = islice(texts, MOST + 1)
    results = list(
        run(
            opened,
            some,
            target,
            batch_size,
            truncate,
            threads=threads,
            prompt_name=prompt_name,
            truncate_dim=truncate_dim,
        )
    )
    if not 2 <= len(results) <= MOST:
        got = f"more than {MOST}" if len(results) > MOST else str(len(results))
        raise UsageError(f"--similarity compares 2 to {MOST} texts, got {got}. Change the number of texts.")
    embeddings = np.array([result.embedding for result in results], np.float64)
    compared = FUNCTIONS[opened.manifest.similarity](embeddings)
    return Similarity([result.text for result in results], compared, opened.manifest.similarity)


def _cosine(embeddings: Numbers) -> Numbers:
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    directions = embeddings / np.maximum(lengths, np.finfo(np.float64).tiny)  # an embedding of zeros has similarity 0
    cosines: Numbers = np.clip(directions @ directions.T, -1, 1)
    return cosines


FUNCTIONS: dict[str, Callable[[Numbers], Numbers]] = {
    "cosine": _cosine,
    "dot": lambda embeddings: embeddings @ embeddings.T,
    "euclidean": lambda embeddings: np.array([-np.linalg.norm(embeddings - row, axis=1) for row in embeddings]),
    "manhattan": lambda embeddings: np.array([-np.abs(embeddings - row).sum(axis=1) for row in embeddings]),
}
