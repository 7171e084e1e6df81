"""Weights as SqueezeLLM's own tools store them (its class QuantLinearLUT).

    qweight           int32 [K·bits/32, N], the codes of an output as a little-endian stream of bits; 3 or 4 bits
    lookup_table      float32 [N, 2^bits], the centroids of each output (section 3.3)
    rows, cols, vals  the sparse matrix [N, K] in compressed sparse rows; a number is what its place lacks, that is the
                      weight less the centroid next to 0, to which its place was set
    full_rows         [K, count], further numbers for the outputs full_row_indices [count], as columns

What those tools add for the threads of a GPU, `startrows`, follows from the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.quantized.parts import Parts, array, described
from intaglio.exporters.checkpoints.quantized.tabled_weight import SparseRows, TabledWeight, Tables
from intaglio.plugins.bit_packing import WORD

METHOD = "squeezellm"
BITS = (3, 4)
SPARSE, FULL = ("rows", "cols", "vals"), ("full_rows", "full_row_indices")
FLOATS = ("lookup_table", "vals", "full_rows")  # the others are int32
THREADS = "startrows"


def weight(name: str, parts: Parts, settings: Mapping[str, Any]) -> TabledWeight:
    """The weight `name` from its parts. Raises `SourceError` where they do not form one."""
    words, channels = parts["qweight"].shape
    entries = parts["lookup_table"].shape[1]
    bits = next((bits for bits in BITS if entries == 1 << bits), 0)
    inputs = words * WORD // bits if bits else 0
    known = all(
        part.dtype.is_floating_point if each in FLOATS else str(part.dtype) == "torch.int32"
        for each, part in parts.items()
    )
    fits = parts["lookup_table"].shape[0] == channels > 0 and bits and words % bits == 0 and inputs % WORD == 0
    if not known or not fits:
        raise _not_a_weight(name, parts)

    def read() -> Tables:
        codes = np.ascontiguousarray(array(parts["qweight"]).T)
        return Tables(codes, array(parts["lookup_table"]).astype(np.float32))

    return TabledWeight((channels, inputs), bits, read, _sparse(name, parts, channels, inputs))


def is_beside_a_pickle(found: Mapping[str, Any]) -> bool:
    """Whether a quant_config.json is of SqueezeLLM's tools: it is about their .pt file, not about safetensors."""
    return found.keys() == {"wbits"}


def _sparse(name: str, parts: Parts, channels: int, inputs: int) -> SparseRows | None:
    """The sparse matrix and the full rows as one; None where there is no number."""
    places, values = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    if any(part in parts for part in SPARSE):
        if not all(part in parts for part in SPARSE):
            raise _not_a_weight(name, parts)
        offsets, columns, numbers = (array(parts[part]) for part in SPARSE)
        ascend = offsets.shape == (channels + 1,) and offsets[0] == 0 and (np.diff(offsets) >= 0).all()
        if not ascend or columns.shape != (offsets[-1],) or numbers.shape != columns.shape:
            raise _not_a_weight(name, parts)
        places.append(np.repeat(np.arange(channels), np.diff(offsets)) * inputs + _within(name, columns, inputs))
        values.append(numbers.astype(np.float32))
    if any(part in parts for part in FULL):
        if not all(part in parts for part in FULL) or parts["full_rows"].shape != (
            inputs,
            *parts["full_row_indices"].shape,
        ):
            raise _not_a_weight(name, parts)
        rows = _within(name, array(parts["full_row_indices"]), channels)
        places.append((rows * inputs + np.arange(inputs)[:, None]).reshape(-1))
        values.append(array(parts["full_rows"]).astype(np.float32).reshape(-1))
    numbers = np.concatenate(values)
    used = np.flatnonzero(numbers)
    return SparseRows.of(np.concatenate(places)[used], numbers[used], channels, inputs) if used.size else None


def _within(name: str, indices: Any, count: int) -> Any:
    """`indices` as int64. Raises `SourceError` for one that is not below `count`."""
    found = indices.astype(np.int64)
    if outside := found[(found < 0) | (found >= count)].tolist():
        raise SourceError(f"{name}: sparse number at {outside[0]}, expected 0 to {count - 1}. Download it again.")
    return found


def _not_a_weight(name: str, parts: Parts) -> SourceError:
    return SourceError(
        f"{name}: {described(parts)} do not form a weight of SqueezeLLM in {BITS[0]} or {BITS[1]} bits. "
        "Download it again."
    )
