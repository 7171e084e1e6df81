"""One warp that runs a kernel's machine code, an instruction at a time.

Lanes that branch apart wait for each other at BSYNC, as on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.arithmetic import Arithmetic
from benchmarks.gpu.counts import Counts
from benchmarks.gpu.disassembly import Code
from benchmarks.gpu.memory import Memory, sectors, wavefronts
from benchmarks.gpu.registers import LANES, Long, Mask, Words

INSTRUCTION = 16  # bytes


class Warp(Arithmetic):
    """`special`: the values of special registers, such as SR_TID.X."""

    def __init__(
        self, code: Code, memory: Memory, shared: Memory, constants: bytes, special: dict[str, Words], counts: Counts
    ) -> None:
        super().__init__(code, constants)
        self.memory, self.shared, self.special, self.counts = memory, shared, special, counts
        self.place = np.zeros(LANES, np.int64)
        self.ended = np.zeros(LANES, bool)
        self.waiting = np.zeros(LANES, bool)
        self.barriers: dict[str, Mask] = {}
        self.saved: dict[str, Mask] = {}
        self.stopped = False

    def run(self) -> None:
        """Runs until all lanes have ended, or wait for the block's other warps."""
        self.stopped = False
        while not self.ended.all() and not self.stopped:
            ready = ~self.ended & ~self.waiting
            if not ready.any():
                raise RuntimeError("all lanes wait")
            at = int(self.place[ready].min())
            instruction = self.code.instructions[at]
            there = ready & (self.place == at)
            active = there & self._guard(instruction.guard)
            self.counts.add(instruction)
            self.place[there] = at + 1
            step = getattr(self, f"_{instruction.name.lower()}", None)
            if step is None:
                raise NotImplementedError(".".join((instruction.name, *instruction.modifiers)))
            if active.any() or instruction.name == "BSYNC":
                step(instruction.modifiers, instruction.operands, active)

    def _guard(self, guard: str) -> Mask:
        return self._predicate(guard) if guard else np.ones(LANES, bool)

    # Memory.
    def _s2r(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        self._write(operands[0], self.special[".".join(operands[1:])], active)

    _s2ur = _s2r

    def _address(self, text: str, pair: bool = True) -> Long:
        """`pair`: a register stands for 64 bits, itself and the next one."""
        total = np.zeros(LANES, np.uint64)
        text = re.sub(r"^desc\[\w+\]", "", text).strip("[]")
        for part in re.findall(r"[+-]?[^+-]+", text):
            part = part.lstrip("+")
            if scaled := re.fullmatch(r"(U?R\d+)(?:\.U32|\.X(\d+))", part):
                total = total + self._word(scaled[1]).astype(np.uint64) * np.uint64(scaled[2] or 1)
            elif not pair and re.fullmatch(r"U?R\d+", part):
                total = total + self._word(part).astype(np.uint64)
            elif re.fullmatch(r"U?R\d+(\.64)?", part):
                total = total + self._long(part)
            elif part not in ("RZ", "URZ"):
                total = total + np.uint64(int(part, 0) % 2**64)
        return total

    @staticmethod
    def _size(modifiers: Sequence[str]) -> int:
        sizes = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
        return next((sizes[each] for each in modifiers if each in sizes), 4)

    def _ldg(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        size = self._size(modifiers)
        places = self.memory.places(self._address(operands[1]), size, active)
        self.counts.sectors += sectors(places)
        self._load(self.memory.bytes[places], modifiers, operands[0], active)

    def _lds(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        size = self._size(modifiers)
        places = self.shared.places(self._address(operands[1], pair=False), size, active)
        self.counts.wavefronts += wavefronts(places)
        self._load(self.shared.bytes[places], modifiers, operands[0], active)

    def _load(self, data: npt.NDArray[np.uint8], modifiers: Sequence[str], target: str, active: Mask) -> None:
        size = self._size(modifiers)
        if size < 4:
            kind = np.dtype(f"{'i' if f'S{8 * size}' in modifiers else 'u'}{size}")
            data = np.ascontiguousarray(data).view(kind).astype(np.int32).view(np.uint8)
        words = np.ascontiguousarray(data).view(np.uint32)
        for more in range(words.shape[1]):
            whole = np.zeros(LANES, np.uint32)
            whole[active] = words[:, more]
            self._write(target, whole, active, more)

    def _stg(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        places = self.memory.places(self._address(operands[0]), self._size(modifiers), active)
        self.counts.sectors += sectors(places)
        self.memory.bytes[places] = self._stored(modifiers, operands[1], active)

    def _sts(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        places = self.shared.places(self._address(operands[0], pair=False), self._size(modifiers), active)
        self.counts.wavefronts += wavefronts(places)
        self.shared.bytes[places] = self._stored(modifiers, operands[1], active)

    def _stored(self, modifiers: Sequence[str], source: str, active: Mask) -> npt.NDArray[np.uint8]:
        size = self._size(modifiers)
        words = np.stack([self._word(source, more)[active] for more in range(-(-size // 4))], axis=1)
        return np.ascontiguousarray(words).view(np.uint8)[:, :size]

    def _bar(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        assert active.sum() == (~self.ended).sum(), "some lanes of a warp do not come to the block's barrier"
        self.stopped = True

    def _shfl(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        assert modifiers[0] == "BFLY" and active.all()
        _, target, source, lanes, _ = operands
        self._write(target, self._word(source)[np.arange(LANES) ^ int(lanes, 0)], active)

    # The places of lanes.

    def _target(self, operands: Sequence[str]) -> int:
        return self.code.labels[operands[-1].strip("`()")]

    def _bra(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        lanes = active
        if "DIV" in modifiers:  # where some lanes are elsewhere
            lanes = active & ~active.all()
        else:
            for predicate in operands[:-1]:
                lanes = lanes & self._predicate(predicate)
        self.place[lanes] = self._target(operands)

    def _call(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        self.place[active] = self._target(operands)

    def _ret(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        self.place[active] = self._word(operands[0].split()[0])[active] // INSTRUCTION

    def _exit(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        self.ended |= active
        self._release()

    def _bssy(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        self.barriers[operands[0]] = active.copy()

    def _bsync(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        self.waiting |= active
        self._release()

    def _break(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        self.barriers[operands[-1]] &= ~active
        self._release()

    def _release(self) -> None:
        """Lets those lanes go on that wait for others no longer."""
        for lanes in self.barriers.values():
            if (self.waiting & lanes).any() and not (lanes & ~self.waiting & ~self.ended).any():
                self.waiting &= ~lanes

    def _bmov(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        """A barrier register is cleared or saved around a function that has barriers of its own."""
        if operands[0].startswith("B"):
            self.barriers[operands[0]] = self.saved[operands[1]]
        elif operands[0] != "RZ":
            self.saved[operands[0]] = self.barriers[operands[1]]

    def _nop(self, modifiers: Sequence[str], operands: Sequence[str], active: Mask) -> None:
        pass

    _warpsync = _yield = _nop
