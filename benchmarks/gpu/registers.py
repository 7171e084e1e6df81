"""The registers and predicates of a warp, and its instructions' operands. The last axis of every array is its lanes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.disassembly import Code

Words = npt.NDArray[np.uint32]
Long = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

LANES = 32
WORD = 0xFFFFFFFF
IMMEDIATE = re.compile(r"-?(0x[0-9a-f]+|\d+)")


class Registers:
    """What the instructions of a warp read and write. `constants`: constant memory with the parameters."""

    def __init__(self, code: Code, constants: bytes) -> None:
        self.code, self.constants = code, constants
        self.registers = np.zeros((256, LANES), np.uint32)
        self.uniform = np.zeros((64, LANES), np.uint32)
        self.predicates = {f"{kind}{i}": np.zeros(LANES, bool) for kind in ("P", "UP") for i in range(7)}

    def _predicate(self, text: str) -> Mask:
        name = text.lstrip("!")
        value = np.ones(LANES, bool) if name in ("PT", "UPT") else self.predicates[name]
        return ~value if text.startswith("!") else value

    def _word(self, text: str, more: int = 0) -> Words:
        """A source of 32 bits, or the register `more` behind it; -x is 2^32 - x, and 2^32 itself is added by `_sum`."""
        text = text.removesuffix(".reuse")
        if text.startswith("-") and not IMMEDIATE.fullmatch(text):
            return (~self._word(text[1:], more) + np.uint32(1)).astype(np.uint32)
        if text.startswith("~"):
            return ~self._word(text[1:], more)
        if text.startswith("|"):
            signed = self._word(text.strip("|"), more).view(np.int32)
            return np.abs(signed).view(np.uint32)
        if text in ("RZ", "URZ", "SRZ"):
            return np.zeros(LANES, np.uint32)
        if register := re.fullmatch(r"(U?)R(\d+)(?:\.64)?", text):
            found: Words = (self.uniform if register[1] else self.registers)[int(register[2]) + more]
            return found
        if constant := re.fullmatch(r"c\[0x([02])\]\[(0x\w+)\]", text):
            start, bank = int(constant[2], 16) + 4 * more, self.constants if constant[1] == "0" else self.code.literals
            return np.full(LANES, int.from_bytes(bank[start : start + 4], "little"), np.uint32)
        return np.full(LANES, (int(text, 0) >> 32 * more) & WORD, np.uint32)

    def _long(self, text: str) -> Long:
        """A source of 64 bits: two registers side by side."""
        if text.startswith("-") and not IMMEDIATE.fullmatch(text):
            return ~self._long(text[1:]) + np.uint64(1)
        return self._word(text).astype(np.uint64) | self._word(text, 1).astype(np.uint64) << np.uint64(32)

    def _write(self, text: str, value: npt.NDArray[Any], active: Mask, more: int = 0) -> None:
        if text in ("RZ", "URZ"):
            return
        register = re.fullmatch(r"(U?)R(\d+)", text)
        assert register, text
        target = (self.uniform if register[1] else self.registers)[int(register[2]) + more]
        if register[1]:
            target[:] = value[active][0]  # one for the whole warp
        else:
            target[active] = value.astype(np.uint32)[active]

    def _write_long(self, text: str, value: Long, active: Mask) -> None:
        self._write(text, value & np.uint64(WORD), active)
        self._write(text, value >> np.uint64(32), active, 1)

    def _write_predicate(self, text: str, value: Mask, active: Mask) -> None:
        if text in ("PT", "UPT"):
            return
        if text.startswith("UP"):
            self.predicates[text][:] = value[active][0]
        else:
            self.predicates[text][active] = value[active]

    @staticmethod
    def _is_predicate(text: str) -> bool:
        return re.fullmatch(r"!?U?P(T|\d)", text) is not None

    def _split(self, operands: Sequence[str]) -> tuple[str, list[str], list[str], list[str]]:
        """The target, the predicates that are written, the sources, and the predicates that are read."""
        target, *rest = operands
        written = []
        while rest and self._is_predicate(rest[0]):
            written.append(rest.pop(0))
        read: list[str] = []
        while rest and self._is_predicate(rest[-1]):
            read.insert(0, rest.pop())
        return target, written, rest, read
