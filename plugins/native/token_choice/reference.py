"""The choice in NumPy: the reference of the kernels' tests, and what runs without a compiler.

A token's distance says how far its logit is below the highest one, in steps of 2^-20 octaves of probability: an
integer of at most `FARTHEST`. Its weight is 2^40 times 2 to the minus distance, so the highest logit's is 2^40. From
there on everything is an integer: sums do not depend on their order, and all kernels choose the same token.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intaglio.plugins.native.token_choice.filters import Filters

Scores = npt.NDArray[np.float32]
Weights = npt.NDArray[np.uint64]

FRACTION = 20  # bits of a distance within an octave
FARTHEST = 63 << FRACTION  # the weight is 0 there, and at infinity
ONE = 40  # log2 of the highest weight
# 2^-g is 1 + g·(C0 + g·(C1 + ... + g·C4)) for g from 0 to 1: a least-squares fit of the relative error, at most 3e-7
# with float32's rounding, which falls in every step of a distance.
COEFFICIENTS = -0.693143547, 0.240178898, -0.0552940406, 0.00920217668, -0.000943510851
DRAW_BITS = 53  # of a random number


def weights(scores: Scores, filters: Filters) -> Weights:
    """Return the weight of each token, uint64 [vocab], 0 for those that the filters leave out.

    scores: [vocab] float32; the highest is finite, none is NaN.
    """
    far = distances(scores, filters)
    found = weights_at(far)
    if 0 < filters.top_k < len(scores):
        found[scores < np.partition(scores, -filters.top_k)[-filters.top_k]] = 0
    if filters.top_p < 1 << 32:
        order = np.argsort(far, kind="stable")
        reached = np.cumsum(found[order])
        enough = max(int(reached[-1]) * filters.top_p >> 32, 1)
        found[far > far[order[int(np.searchsorted(reached, enough))]]] = 0
    found[found < filters.min_p] = 0
    return found


def choose(scores: Scores, filters: Filters, draw: int) -> int:
    """Return the token at `draw` / 2^53 of the sum of `weights`, in the order of the tokens."""
    return drawn(weights(scores, filters), draw)


def drawn(found: Weights, draw: int) -> int:
    """Return the token at `draw` / 2^53 of the sum of weights [vocab], of which one is above 0."""
    reached = np.cumsum(found)
    return int(np.searchsorted(reached, int(reached[-1]) * draw >> DRAW_BITS, side="right"))


def subtracted(target: Weights, draft: Weights | int) -> Weights:
    """Return weights for the token in the place of a rejected draft token.

    draft: the weights that the token was drawn by; the result is what the target's probabilities exceed its by
    (Leviathan et al. 2023). Or the token, if it was not drawn: it is left out.
    """
    if isinstance(draft, int):
        return np.where(np.arange(len(target)) == draft, np.uint64(0), target)
    p, q = (np.floor(each * (2.0**50 / float(each.sum()))).astype(np.uint64) for each in (target, draft))
    return np.where(p > q, p - q, np.uint64(0))


def likeliest(scores: Scores, count: int) -> tuple[npt.NDArray[np.intp], float]:
    """Return the `count` tokens with the highest scores, in descending order, and the sum of exp(score - highest)."""
    total = int(weights_at(distances(scores, Filters.of(1.0))).sum())
    return np.argsort(-scores, kind="stable")[:count], total / 2.0**ONE


def distances(scores: Scores, filters: Filters) -> npt.NDArray[np.uint32]:
    """Return the distance of each token, [vocab]."""
    with np.errstate(over="ignore", invalid="ignore"):  # minus infinity times a temperature's factor of 0
        far = (scores.max() - scores) * filters.scale
    return np.where(far < FARTHEST, far, FARTHEST).astype(np.uint32)


def weights_at(far: npt.NDArray[np.uint32]) -> Weights:
    """Return the weight at each distance, computed in float32 with each product added before it is rounded."""
    part = (far & ((1 << FRACTION) - 1)) / np.float64(1 << FRACTION)  # whose products with a float32 a float64 holds
    *rest, last = map(np.float32, COEFFICIENTS)
    value = np.full(far.shape, last)
    for coefficient in (*rest[::-1], np.float32(1)):
        value = (value * part + np.float64(coefficient)).astype(np.float32)
    return (value * np.float32(1 << 24)).astype(np.uint64) << np.uint64(ONE - 24) >> (far >> FRACTION).astype(np.uint64)
