"""The arrays that a caller gives to a step, checked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intaglio.errors import UsageError
from intaglio.runtime.sessions.step_buffers import Integers


def step_inputs(
    batch: int, input_ids: npt.ArrayLike, counts: npt.ArrayLike | None, logit_indices: npt.ArrayLike | None
) -> tuple[Integers, list[int], Integers]:
    """Ids [batch, tokens], the real ones of each row, and the tokens whose logits are returned [batch, wanted].

    By default all are real, and the last real one is wanted. Raises `UsageError` for other shapes and invalid numbers.
    """
    ids = np.asarray(input_ids, np.int64)
    if ids.ndim != 2 or ids.shape[0] != batch or ids.shape[1] < 1:
        raise UsageError(f"input_ids {ids.shape}: expected [{batch}, tokens].")
    tokens = ids.shape[1]
    real = np.full(batch, tokens, np.int64) if counts is None else np.asarray(counts, np.int64)
    if real.shape != (batch,) or real.min() < 0 or real.max() > tokens:
        raise UsageError(f"counts {real.tolist()}: expected {batch} from 0 to {tokens}.")
    wanted = np.maximum(real - 1, 0)[:, None] if logit_indices is None else np.asarray(logit_indices, np.int64)
    if wanted.ndim != 2 or wanted.shape[0] != batch or wanted.min() < 0 or wanted.max() >= tokens:
        raise UsageError(f"logit_indices {wanted.shape}: expected [{batch}, wanted] from 0 to {tokens - 1}.")
    return ids, real.tolist(), wanted
