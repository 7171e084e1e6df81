"""Where the numbers of a packed weight lie: the layout of plugins/cpu/index_units.h, as loads and shifts."""

from __future__ import annotations

from typing import NamedTuple

LOAD = 64  # bytes of a unit's load


REST = 3  # with 3 bits, in the place of a load: the two upper bits of all three joined, load 0's the lowest


class Place(NamedTuple):
    """Place of a vector of numbers: bit `shift` of the vector loaded `load`·64 bytes into the unit, or of `REST`."""

    load: int
    shift: int


def unit_loads(bits: int) -> int:
    """Loads of a unit."""
    return 3 if bits == 3 else 1


def unit_bytes(bits: int) -> int:
    """Bytes of a unit."""
    return LOAD * unit_loads(bits)


def unit_vectors(bits: int, lane_bits: int) -> int:
    """Vectors of numbers of a unit, with one number in each lane of 8 or 32 bits."""
    return unit_loads(bits) * lane_bits // bits


def place(bits: int, lane_bits: int, vector: int) -> Place:
    """Where a unit's vector lies."""
    if bits != 3:
        return Place(0, vector * bits)
    whole = lane_bits // 3  # numbers of a load
    return Place(min(vector // whole, REST), (vector - min(vector // whole, REST) * whole) * 3)


def used_bits(load: int, lane_bits: int) -> int:
    """Bits of a lane of a load that anything lies in."""
    return 6 if load == REST else lane_bits
