"""What logits alone say: the most probable tokens, and probabilities at a temperature of 1, before any filter."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from intaglio.plugins.native import token_choice
from intaglio.runtime.sessions.device_logits import DeviceLogits
from intaglio.runtime.sessions.token_chooser import checked

Logits = npt.NDArray[np.floating]
Tokens = npt.NDArray[np.intp]


def best(logits: Logits | DeviceLogits) -> int:
    """Return the token with the highest of logits [vocabulary], the first of equals. Raises `EngineError` for NaN."""
    if isinstance(logits, DeviceLogits):
        return checked(logits.best())
    token = int(logits.argmax())  # the first NaN, if there is one
    return checked(token if math.isfinite(logits.item(token)) else -1)


def softmax(logits: Logits | DeviceLogits) -> npt.NDArray[np.floating]:
    """Return the probabilities for logits [vocabulary], before any filter."""
    logits = np.asarray(logits)
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def likeliest(logits: Logits | DeviceLogits, count: int) -> list[tuple[list[int], list[float]]]:
    """Return for each row of logits [rows, vocabulary] its `count` most probable tokens, and their probabilities.

    In descending order, and of equals the first token first. Raises `EngineError` for NaN.
    """
    if isinstance(logits, DeviceLogits):
        tokens, scores, totals = logits.likeliest(count)
        checked(int(tokens.min(initial=0)))
        chances = np.exp(scores - scores[:, :1]) / totals[:, None]
        return list(zip(tokens.tolist(), chances.tolist(), strict=True))
    found = []
    for row in logits:
        highest = row[best(row)]
        places, total = token_choice.likeliest(row, count, float(highest))
        found.append((places.tolist(), (np.exp(row[places] - highest) / total).tolist()))
    return found


def largest(logits: Logits, count: int) -> Tokens:
    """Return the `count` tokens, at least 1, with the highest of logits [vocabulary], in descending order."""
    return token_choice.likeliest(logits, count)[0]


def largest_probability(logits: Logits | DeviceLogits) -> float:
    """Return the highest probability for logits [vocabulary], at a temperature of 1. Raises `EngineError` for NaN."""
    token = best(logits)
    if isinstance(logits, DeviceLogits):
        return logits.largest_probability()
    return 1 / token_choice.likeliest(logits, 0, float(logits[token]))[1]


def surprise(logits: Logits | DeviceLogits, token: int) -> float:
    """Return -ln p(token) for logits [vocabulary], at a temperature of 1, in nats. Raises `EngineError` for NaN."""
    highest_token = best(logits)
    if isinstance(logits, DeviceLogits):
        return logits.surprise(token)
    highest = float(logits[highest_token])
    return math.log(token_choice.likeliest(logits, 0, highest)[1]) + highest - float(logits[token])
