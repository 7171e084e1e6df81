"""What logits alone say: the most probable tokens, and probabilities at a temperature of 1, before any filter."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from intaglio.errors import EngineError
from intaglio.runtime.sessions.device_logits import DeviceLogits

Logits = npt.NDArray[np.floating]
Tokens = npt.NDArray[np.intp]

GROUP = 16  # scores per group; the first search for the top k looks only at the largest of each group


def best(logits: Logits | DeviceLogits) -> int:
    """Return the token with the highest of logits [vocabulary], the first of equals. Raises `EngineError` for NaN."""
    if isinstance(logits, DeviceLogits):
        return checked(logits.best())
    token = int(logits.argmax())  # the first NaN, if there is one
    return checked(token if math.isfinite(logits.item(token)) else -1)


def checked(token: int) -> int:
    """Return `token`; raise `EngineError` for -1, which stands for NaN or infinite logits."""
    if token < 0:
        raise EngineError("the model returns NaN or infinite logits. It overflows: use another bundle or dtype.")
    return token


def softmax(logits: Logits | DeviceLogits) -> npt.NDArray[np.floating]:
    """Return the probabilities for logits [vocabulary], before any filter."""
    logits = np.asarray(logits)
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def likeliest(logits: Logits, count: int) -> tuple[list[int], list[float]]:
    """Return the `count` most probable tokens for logits [vocabulary], in descending order, and their probabilities.

    Raises `EngineError` for NaN.
    """
    highest = logits[best(logits)]
    tokens = largest(logits, count)
    total = np.exp(logits - highest).sum()
    return tokens.tolist(), (np.exp(logits[tokens] - highest) / total).tolist()


def largest(logits: Logits, count: int) -> Tokens:
    """Return the `count` tokens, at least 1, with the highest of logits [vocabulary], in descending order."""
    tokens = np.flatnonzero(logits >= _kth_largest(logits, min(count, len(logits))))
    return tokens[np.argsort(-logits[tokens], kind="stable")][:count]


def largest_probability(logits: Logits | DeviceLogits) -> float:
    """Return the highest probability for logits [vocabulary], at a temperature of 1."""
    if isinstance(logits, DeviceLogits):
        return logits.largest_probability()
    return float(1 / np.exp(logits - logits.max()).sum())


def surprise(logits: Logits | DeviceLogits, token: int) -> float:
    """Return -ln p(token) for logits [vocabulary], at a temperature of 1, in nats."""
    if isinstance(logits, DeviceLogits):
        return logits.surprise(token)
    highest = logits.max()
    return float(np.log(np.exp(logits - highest).sum()) + (highest - logits[token]))


def _kth_largest(scores: Logits, k: int) -> np.floating:
    """Return the k-th largest of `scores` [n], k ≤ n, without partitioning all of them."""
    groups = len(scores) // GROUP
    if k < groups:
        # k groups have a maximum of at least `bound`, so the k largest scores are not below it.
        bound = np.partition(scores[: groups * GROUP].reshape(GROUP, groups).max(axis=0), -k)[-k]
        scores = scores[scores >= bound]
    return np.partition(scores, -k)[-k]  # type: ignore[no-any-return]
