"""The constants by which a graph subtracts the minimums of groups from a product of GroupMatMul.

    w[n, k] = scales[n, g]·(q[n, k] - zero_points[n, g]) - minimums[n, g]
    x·wᵀ = GroupMatMul(x) - sums·minimumsᵀ,   sums[g] = Σ x[k] of group g, a product with ones

These are MatMuls with constants that are parts of a quantised weight, and no weights to be compressed.
"""

from __future__ import annotations

MINIMUMS, ONES = "minimums", "minimums.ones"  # after the weight's name


def completes_groups(name: str | None) -> bool:
    """Whether the constant called `name` is such a part."""
    return name is not None and name.endswith((f".{MINIMUMS}", f".{ONES}"))
