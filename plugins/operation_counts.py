"""Multiplications and additions of products, from the shapes of the factors: the work in a roofline."""

from __future__ import annotations

import math

from intaglio.plugins.operator_inputs import Shape


def product(output: Shape | None, first: Shape | None) -> int:
    """Operations of a matrix product: K of both for each element of `output`, K being the first factor's last axis.

    0 if a length is unknown, as in the functions below.
    """
    if not _known(output, first) or not first:
        return 0
    return 2 * _elements(output) * _elements(first[-1:])


def sparse_product(x: Shape | None, values: Shape | None) -> int:
    """Operations of a product with a sparse matrix: one of both for each value [nnz] and row of x [..., K]."""
    if not _known(x, values) or not x:
        return 0
    return 2 * _elements(values) * _elements(x[:-1])


def attention(context: Shape | None, keys: Shape | None) -> int:
    """Operations of the scores and of their products with the values.

    `context`: [batch, queries, heads·depth], or with a heads axis before the queries; keys: [..., keys, width].
    """
    if not _known(context, keys) or not keys:
        return 0
    return 4 * _elements(context) * _elements(keys[-2:-1])


def _known(*shapes: Shape | None) -> bool:
    return all(shape is not None and all(isinstance(length, int) for length in shape) for shape in shapes)


def _elements(shape: Shape | None) -> int:
    return math.prod(length for length in shape or () if isinstance(length, int))
