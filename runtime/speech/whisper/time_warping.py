"""Dynamic time warping, and the median filter before it, with the numbers of transformers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

BOTH, ROW, COLUMN = 0, 1, 2  # what a step of a path advances


def median_filtered(values: Floats, width: int) -> Floats:
    """The medians of `values` [..., positions] over `width` positions, an odd number; the edges are mirrored.

    Values of at most width // 2 positions are returned unchanged.
    """
    half = width // 2
    if values.shape[-1] <= half:
        return values
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(half, half)], mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width, -1)
    found: Floats = np.partition(windows, half, -1)[..., half]  # in a third of the time of np.median
    return found


def warping_path(costs: npt.NDArray[np.float64]) -> tuple[Integers, Integers]:
    """The rows and columns of the cheapest path from the first to the last element of `costs` [rows, columns].

    Each step advances by a row, a column, or both; of equal ones, by a column.
    """
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    steps = np.full((rows + 1, columns + 1), COLUMN, np.int8)
    steps[1:, 0] = ROW
    for place in range(rows + columns - 1):  # along a diagonal, whose elements depend on earlier ones only
        row = np.arange(max(place - columns + 1, 0), min(place, rows - 1) + 1) + 1
        column = place + 2 - row
        both, down, right = total[row - 1, column - 1], total[row - 1, column], total[row, column - 1]
        by_both, by_row = (both < down) & (both < right), (down < both) & (down < right)
        steps[row, column] = np.where(by_both, BOTH, np.where(by_row, ROW, COLUMN))
        total[row, column] = costs[row - 1, column - 1] + np.where(by_both, both, np.where(by_row, down, right))
    path = []
    row_index, column_index = rows, columns
    while row_index > 0 or column_index > 0:
        path.append((row_index - 1, column_index - 1))
        step = steps[row_index, column_index]
        row_index -= step != COLUMN
        column_index -= step != ROW
    found = np.array(path[::-1], np.int64)
    return found[:, 0], found[:, 1]
