"""Where the numbers of a packed weight lie: the layout of plugins/cpu/index_units.h, as loads and shifts."""

from __future__ import annotations

from typing import NamedTuple

LOAD = 64  # bytes of a unit's load


REST = 3  # with 3 bits, in the place of a load: the two upper bits of all three joined, load 0's the lowest
NIBBLE = 4  # bits of a number of 5 or 6 that lie in its own load


class Place(NamedTuple):
    """Place of a vector of numbers: bit `shift` of the vector loaded `load`·64 bytes into the unit, or of `REST`."""

    load: int
    shift: int


def is_split(bits: int) -> bool:
    """Whether the upper bits of a number lie in another load than the lower four: the last of the unit."""
    return bits in (5, 6)


def unit_loads(bits: int) -> int:
    """Loads of a unit."""
    return {3: 3, 5: 5, 6: 3}.get(bits, 1)


def unit_bytes(bits: int) -> int:
    """Bytes of a unit."""
    return LOAD * unit_loads(bits)


def unit_vectors(bits: int, lane_bits: int) -> int:
    """Vectors of numbers of a unit, with one number in each lane of 8 or 32 bits."""
    return unit_loads(bits) * lane_bits // bits


def place(bits: int, lane_bits: int, vector: int) -> Place:
    """Where a unit's vector lies, or its lower bits."""
    if is_split(bits):
        return Place(vector // (lane_bits // NIBBLE), vector % (lane_bits // NIBBLE) * NIBBLE)
    if bits != 3:
        return Place(0, vector * bits)
    whole = lane_bits // 3  # numbers of a load
    return Place(min(vector // whole, REST), (vector - min(vector // whole, REST) * whole) * 3)


def upper_place(bits: int, vector: int) -> Place:
    """Where the upper bits of a unit's vector lie, of a width that `is_split`."""
    return Place(unit_loads(bits) - 1, vector * (bits - NIBBLE))


def used_bits(load: int, lane_bits: int) -> int:
    """Bits of a lane of a load that anything lies in."""
    return 6 if load == REST else lane_bits
