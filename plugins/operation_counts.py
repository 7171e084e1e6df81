"""Multiplications and additions of products, counted by the lengths of what is multiplied: the work of a roofline."""

from __future__ import annotations

import math

from intaglio.plugins.operator_inputs import Shape


def product(output: Shape | None, first: Shape | None) -> int:
    """Of a matrix product: for each number of `output` as many of both as the rows of the first factor are long.

    0 where a length is not known, here as below.
    """
    if not _known(output, first) or not first:
        return 0
    return 2 * _elements(output) * _elements(first[-1:])


def sparse_product(x: Shape | None, values: Shape | None) -> int:
    """Of a product with a sparse matrix: one of both for each of its values [nnz] and row of x [..., K]."""
    if not _known(x, values) or not x:
        return 0
    return 2 * _elements(values) * _elements(x[:-1])


def attention(context: Shape | None, keys: Shape | None) -> int:
    """Of the scores and of their products with the values.

    `context`: [batch, queries, heads·depth], or with an axis of heads before the queries; keys: [..., keys, width].
    """
    if not _known(context, keys) or not keys:
        return 0
    return 4 * _elements(context) * _elements(keys[-2:-1])


def _known(*shapes: Shape | None) -> bool:
    return all(shape is not None and all(isinstance(length, int) for length in shape) for shape in shapes)


def _elements(shape: Shape | None) -> int:
    return math.prod(length for length in shape or () if isinstance(length, int))
