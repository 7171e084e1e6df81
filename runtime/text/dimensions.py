"""The first numbers of embeddings, for models that were trained to have useful beginnings (Kusupati et al., 2022)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intaglio.bundle.manifest import Manifest
from intaglio.errors import UsageError
from intaglio.runtime.text.tasks import EMBEDDING_TASKS, TASKS

UNIT = 1e-3  # the difference from 1 of the length of an embedding that was divided by its length, in float16 too


def check_dimensions(manifest: Manifest, dimensions: int | None, option: str = "--truncate-dim") -> None:
    """Raise `UsageError` unless the embeddings of a bundle have at least `dimensions` numbers; `option` gave it."""
    if dimensions is None:
        return
    if manifest.task not in EMBEDDING_TASKS:
        raise UsageError(
            f"{option} is for bundles that embed, and the bundle's task is {manifest.task or 'unknown'}. Leave it out."
        )
    width = next(spec.shape[-1] for spec in manifest.outputs if spec.name == TASKS[manifest.task].output)
    if dimensions < 1 or (isinstance(width, int) and dimensions > width):
        raise UsageError(f"{option} {dimensions}: expected 1 to {width}, the numbers of an embedding. Change it.")


def scaled(embedding: npt.NDArray[np.float32], dimensions: int | None) -> npt.NDArray[np.float32]:
    """The first numbers of an embedding [width]; if its length is 1, theirs is again, as OpenAI's service has it."""
    if dimensions is None:
        return embedding
    first = embedding[:dimensions]
    length = float(np.linalg.norm(first))
    if length == 0 or abs(float(np.linalg.norm(embedding)) - 1) > UNIT:
        return first
    return np.asarray(first / length, np.float32)
