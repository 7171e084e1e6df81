"""What the warps of a run did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from benchmarks.gpu.disassembly import Instruction, unit_of


@dataclass
class Counts:
    """Instructions by unit and by name, and what they moved."""

    units: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    sectors: int = 0  # of 32 bytes of global memory, each counted once for an instruction
    wavefronts: int = 0  # of shared memory: passes of 128 bytes, and those that conflicts of banks add
    warps: int = 0

    def add(self, instruction: Instruction) -> None:
        """Counts one instruction of a warp."""
        self.units[unit_of(instruction)] += 1
        self.names[".".join((instruction.name, *instruction.modifiers))] += 1
