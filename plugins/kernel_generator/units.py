"""Where the numbers of a packed weight lie: the layout of plugins/index_units.h, as loads and shifts."""

from __future__ import annotations

from typing import NamedTuple

LOAD = 64  # bytes of a unit's load


class Piece(NamedTuple):
    """Bits of a vector of numbers: what is loaded `load`·64 bytes into the unit, moved right by `shift` bits."""

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


def pieces(bits: int, lane_bits: int, vector: int) -> tuple[Piece, ...]:
    """The one piece of a unit's vector; two, the lower two bits and the third, of the last vectors with 3 bits."""
    if bits != 3:
        return (Piece(0, vector * bits),)
    whole = lane_bits // 3  # of a load
    if vector < 3 * whole:
        return (Piece(vector // whole, vector % whole * 3),)
    last = vector - 3 * whole
    return (Piece(last, lane_bits - 2), Piece(2, lane_bits - 4 + last))


def upper_bits_are_clear(bits: int, lane_bits: int, vector: int) -> bool:
    """Whether nothing but the number is left in a lane of 32 bits after the shift."""
    found = pieces(bits, lane_bits, vector)
    return len(found) == 1 and found[0].shift + bits == lane_bits
