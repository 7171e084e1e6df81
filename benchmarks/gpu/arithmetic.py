"""What the instructions for integers do, and those of floating point that divisions begin with.

They have no public specification: what they do here is what their names and the compiler's use of them say.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.gpu.registers import IMMEDIATE, LANES, WORD, Long, Mask, Registers, Words

COMPARISONS = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}


class Arithmetic(Registers):
    """Each method `_name(modifiers, operands, active)` is an instruction, for the lanes that are active."""

    def _sum(self, sources: Sequence[str], carries: Sequence[str]) -> Long:
        """A sum of words with its carry; a negated source is its complement and 1, whose carry counts."""
        total = np.zeros(LANES, np.uint64)
        for source in sources:
            if source.startswith("-") and not IMMEDIATE.fullmatch(source):
                total = total + (~self._word(source[1:])).astype(np.uint64) + np.uint64(1)
            else:
                total = total + self._word(source).astype(np.uint64)
        for carry in carries:
            total = total + self._predicate(carry).astype(np.uint64)
        return total

    def _iadd3(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        target, written, sources, read = self._split(operands)
        total = self._sum(sources, read if "X" in modifiers else ())
        self._write(target, total & np.uint64(WORD), active)
        for number, predicate in enumerate(written):
            self._write_predicate(predicate, total >> np.uint64(32) > number, active)

    def _imad(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        target, written, (a, b, c), read = self._split(operands)
        unsigned = "U32" in modifiers
        if "WIDE" in modifiers or "HI" in modifiers:
            as_long: Callable[[Words], Long] = (
                (lambda word: word.astype(np.uint64))
                if unsigned
                else (lambda word: word.view(np.int32).astype(np.int64).view(np.uint64))
            )
            product = as_long(self._word(a)) * as_long(self._word(b))
            total = product + self._long(c)
            if "X" in modifiers:
                total = total + self._predicate(read[0]).astype(np.uint64)
            if "HI" in modifiers:
                self._write(target, total >> np.uint64(32), active)
            else:
                self._write_long(target, total, active)
            for predicate in written:
                self._write_predicate(predicate, total < product, active)
            return
        total = self._word(a).astype(np.uint64) * self._word(b).astype(np.uint64) + self._word(c).astype(np.uint64)
        if "X" in modifiers:
            total = total + self._predicate(read[0]).astype(np.uint64)
        self._write(target, total & np.uint64(WORD), active)

    def _shf(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        target, low, shift, high = operands
        wide = next(each for each in modifiers if each in ("U32", "S32", "U64", "S64"))
        bits = 64 if wide.endswith("64") else 32
        count = self._word(shift).astype(np.uint64)
        count = count % np.uint64(bits) if "W" in modifiers else np.minimum(count, np.uint64(bits))
        upper, lower = self._word(high), self._word(low)
        both = upper.astype(np.uint64) << np.uint64(32) | lower.astype(np.uint64)
        if "L" in modifiers:
            shifted = np.where(count > 63, np.uint64(0), both << np.minimum(count, np.uint64(63)))
        elif wide.startswith("S"):
            shifted = (both.view(np.int64) >> np.minimum(count, np.uint64(63)).astype(np.int64)).view(np.uint64)
        else:
            shifted = np.where(count > 63, np.uint64(0), both >> np.minimum(count, np.uint64(63)))
        part = shifted >> np.uint64(32) if "HI" in modifiers else shifted & np.uint64(WORD)
        self._write(target, part, active)

    def _lop3(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        rest = list(operands)
        predicate = rest.pop(0) if self._is_predicate(rest[0]) else None
        target, a, b, c, table, joined = rest
        sources, result = [self._word(each) for each in (a, b, c)], np.zeros(LANES, np.uint32)
        for number in range(8):
            if int(table, 0) >> number & 1:
                term = np.full(LANES, WORD, np.uint32)
                for source, bit in zip(sources, (4, 2, 1), strict=True):
                    term &= source if number & bit else ~source
                result |= term
        self._write(target, result, active)
        if predicate:
            self._write_predicate(predicate, (result != 0) | self._predicate(joined), active)

    def _plop3(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        first, second, *sources, table, other = operands
        a, b, c = (self._predicate(each).astype(np.int64) for each in sources)
        number = 4 * a + 2 * b + c
        self._write_predicate(first, (int(table, 0) >> number & 1).astype(bool), active)
        self._write_predicate(second, (int(other, 0) >> number & 1).astype(bool), active)

    def _sel(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        target, a, b, predicate = operands
        self._write(target, np.where(self._predicate(predicate), self._word(a), self._word(b)), active)

    def _imnmx(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        target, a, b, predicate = operands
        kind = np.uint32 if "U32" in modifiers else np.int32
        x, y = self._word(a).view(kind), self._word(b).view(kind)
        chosen = np.where(self._predicate(predicate), np.minimum(x, y), np.maximum(x, y))
        self._write(target, chosen.view(np.uint32), active)

    def _isetp(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        first, second, a, b, other, *low = operands
        comparison = next(each for each in modifiers if each in COMPARISONS)
        kind = np.uint32 if "U32" in modifiers else np.int32
        x, y = self._word(a).view(kind), self._word(b).view(kind)
        found = COMPARISONS[comparison](x, y)
        if "EX" in modifiers:  # of the high halves, after that of the low ones
            below = self._predicate(low[0])
            strict = {"LE": operator.lt, "GE": operator.gt}.get(comparison, COMPARISONS[comparison])(x, y)
            found = found & below if comparison == "EQ" else strict | ((x == y) & below)
        joined = self._predicate(other)
        either = "OR" in modifiers
        self._write_predicate(first, found | joined if either else found & joined, active)
        self._write_predicate(second, ~found | joined if either else ~found & joined, active)

    def _lea(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        target, written, sources, read = self._split(operands)
        shift = int(sources.pop(), 0)
        if "HI" in modifiers:
            low = self._word(sources[0])
            sign = (low.view(np.int32) >> 31).view(np.uint32)
            high = sign if "SX32" in modifiers else self._word(sources[2])
            both = high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)
            shifted = (both << np.uint64(shift)) >> np.uint64(32)
        else:
            shifted = (self._word(sources[0]).astype(np.uint64) << np.uint64(shift)) & np.uint64(WORD)
        total = shifted + self._sum(sources[1:2], read if "X" in modifiers else ())
        self._write(target, total & np.uint64(WORD), active)
        for predicate in written:
            self._write_predicate(predicate, total > WORD, active)

    def _prmt(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        target, low, selector, high = operands
        both = self._word(high).astype(np.uint64) << np.uint64(32) | self._word(low).astype(np.uint64)
        names, result = self._word(selector).astype(np.uint64), np.zeros(LANES, np.uint64)
        for number in range(4):
            name = names >> np.uint64(4 * number)
            byte = both >> (name & np.uint64(7)) * np.uint64(8) & np.uint64(255)
            sign = np.where(byte > 127, np.uint64(255), np.uint64(0))
            result |= np.where(name & np.uint64(8) != 0, sign, byte) << np.uint64(8 * number)
        self._write(target, result, active)

    def _iabs(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        self._write(operands[0], np.abs(self._word(operands[1]).view(np.int32)).view(np.uint32), active)

    def _mov(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        self._write(operands[0], self._word(operands[1]), active)

    def _p2r(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        kind = "UP" if operands[1] == "UPR" else "P"
        bits = sum(self.predicates[f"{kind}{i}"].astype(np.uint32) << np.uint32(i) for i in range(7))
        self._write(operands[0], bits & self._word(operands[3]), active)

    def _cs2r(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        for more in range(1 if "32" in modifiers else 2):
            self._write(operands[0], self._word(operands[1]), active, more)

    def _r2ur(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        self._write(operands[0], self._word(operands[1]), active)

    # The same by the unit whose registers all lanes share.
    _uiadd3, _uimad, _ushf, _ulop3, _uplop3, _usel = _iadd3, _imad, _shf, _lop3, _plop3, _sel
    _uisetp, _ulea, _uprmt, _umov, _up2ur = _isetp, _lea, _prmt, _mov, _p2r

    def _ldc(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        for more in range(2 if "64" in modifiers else 1):
            self._write(operands[0], self._word(operands[1], more), active, more)

    _uldc = _ldc

    # Division begins in floating point; a remainder corrects it, so that the last bit does not matter.

    def _mufu(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        assert modifiers[0] == "RCP"
        with np.errstate(divide="ignore", over="ignore"):
            self._write(operands[0], (np.float32(1) / self._word(operands[1]).view(np.float32)).view(np.uint32), active)

    def _i2f(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        if "U64" in modifiers:
            exact = self._long(operands[1]).astype(object)
        else:
            exact = self._word(operands[1]).view(np.uint32 if "U32" in modifiers else np.int32).astype(object)
        nearest = exact.astype(np.float32)
        below = np.array([int(a) < b for a, b in zip(nearest, exact, strict=True)])
        up = np.where(below, np.nextafter(nearest, np.float32(np.inf)), nearest) if "RP" in modifiers else nearest
        self._write(operands[0], up.view(np.uint32), active)

    def _f2i(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        value = np.nan_to_num(self._word(operands[1]).view(np.float32).astype(np.float64), posinf=2.0**64)
        if "U64" in modifiers:
            self._write_long(operands[0], np.clip(value, 0, np.nextafter(2.0**64, 0)).astype(np.uint64), active)
        else:
            low, high = (0, WORD) if "U32" in modifiers else (-(2**31), 2**31 - 1)
            self._write(operands[0], np.clip(np.trunc(value), low, high).astype(np.int64) & WORD, active)
