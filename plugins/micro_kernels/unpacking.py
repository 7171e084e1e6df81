"""Emits what brings the numbers of a packed weight into vectors: loads, shifts, masks."""

from __future__ import annotations

from intaglio.plugins.micro_kernels.instruction_sets import InstructionSet
from intaglio.plugins.micro_kernels.micro_kernel import MicroKernelCase, lane_bits
from intaglio.plugins.micro_kernels.source import SourceWriter, plus
from intaglio.plugins.micro_kernels.units import LOAD, NIBBLE, REST, Place, is_split, place, upper_place, used_bits


class Unpacking:
    """The numbers of one case, as vectors of words or bytes."""

    def __init__(self, case: MicroKernelCase, isa: InstructionSet) -> None:
        self.bits = case.bits
        self.lane_bits = lane_bits(case.planes)
        self.forms = isa.forms
        self.shift_form = isa.bytes.shift_right if self.lane_bits == 8 and isa.bytes else isa.forms.shift_right
        self.left_form = isa.bytes.shift_left if self.lane_bits == 8 and isa.bytes else isa.forms.shift_left
        self.set_form = isa.bytes.set_bytes if self.lane_bits == 8 and isa.bytes else isa.forms.set_integers

    def constants(self, emit: SourceWriter, mask: int | None) -> None:
        """The vectors that `masked`, if there is a `mask`, and `load` use."""
        if mask is not None and self.bits < self.lane_bits:
            emit(f"const {self.forms.integers} mask = {self.set_form.format(mask)};")
        if self.bits == 3 or is_split(self.bits):
            for count in (2, 4) if self.bits == 3 else (NIBBLE,):
                value = self.set_form.format((1 << count) - 1)
                emit(f"const {self.forms.integers} lowest_{count} = {value};")

    def load(self, emit: SourceWriter, name: str, pointer: str, offset: int, vectors: list[int]) -> None:
        """Load what `vectors` of the unit at `pointer` + offset are made from, each load once."""
        wanted = {self.place(vector).load for vector in vectors}
        if is_split(self.bits):
            wanted |= {upper_place(self.bits, vector).load for vector in vectors}
        for load in range(REST) if self.bits == 3 and REST in wanted else sorted(wanted):
            address = plus(pointer, offset + LOAD * load)
            emit(f"const {self.forms.integers} {name}_{load} = {self.forms.load_integers.format(address)};")
        if self.bits == 3 and REST in wanted:
            first, second, third = (
                self.shift_form.format(f"{name}_{load}", self.lane_bits - 2 - 2 * load) for load in range(REST)
            )
            upper = self.forms.merge.format("lowest_4", second, third)
            emit(f"const {self.forms.integers} {name}_{REST} = {self.forms.merge.format('lowest_2', first, upper)};")

    def place(self, vector: int) -> Place:
        """Where a vector's numbers lie."""
        return place(self.bits, self.lane_bits, vector)

    def shifted(self, name: str, at: Place) -> str:
        """The bits from a place on, with anything above the number; `name` is what `load` got."""
        loaded = f"{name}_{at.load}"
        return loaded if at.shift == 0 else self.shift_form.format(loaded, at.shift)

    def numbers(self, name: str, vector: int) -> str:
        """The numbers of a vector; `name` is what `load` got."""
        at = self.place(vector)
        if not is_split(self.bits):
            return self.masked(name, at)
        load, shift = upper_place(self.bits, vector)
        upper = f"{name}_{load}"
        if shift != NIBBLE:
            form = self.shift_form if shift > NIBBLE else self.left_form
            upper = form.format(upper, abs(shift - NIBBLE))
        joined = self.forms.merge.format(f"lowest_{NIBBLE}", self.shifted(name, at), upper)
        return self.forms.bit_and.format(joined, "mask")

    def masked(self, name: str, at: Place) -> str:
        """The bits from a place on that are ones in the mask: none is needed where nothing lies above the number."""
        clear = self.lane_bits == 32 and at.shift + self.bits >= used_bits(at.load, 32)
        whole = self.bits == self.lane_bits
        numbers = self.shifted(name, at)
        return numbers if whole or clear else self.forms.bit_and.format(numbers, "mask")
