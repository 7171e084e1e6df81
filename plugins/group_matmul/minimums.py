"""The constants of a quantised weight that standard operators read: minimums beside a product, scales of a look-up.

    w[n, k] = scales[n, g]·(q[n, k] - zero_points[n, g]) - minimums[n, g], or scales[n, g]·levels[q[n, k]]
    x·wᵀ = GroupMatMul(x) - sums·minimumsᵀ,   sums[g] = Σ x[k] of group g, a product with ones

Rows of an embedding are looked up as codes, scales, and minimums or levels. MatMul and Gather with such constants read
parts of a quantised weight, and no weights to be compressed.
"""

from __future__ import annotations

MINIMUMS, ONES = "minimums", "minimums.ones"  # after the weight's name
SCALES, ZERO_POINTS, LEVELS = (
    "weight.scales",
    "weight.zero_points",
    "weight.levels",
)  # the ends of the names of an embedding's


def completes_groups(name: str | None) -> bool:
    """Whether the constant called `name` is such a part."""
    ends = MINIMUMS, ONES, SCALES, ZERO_POINTS, LEVELS
    return name is not None and name.endswith(tuple(f".{end}" for end in ends))
