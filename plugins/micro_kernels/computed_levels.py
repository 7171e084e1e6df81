"""Levels of 8 bits that are computed from the numbers, in the place of look-ups from memory."""

from __future__ import annotations

from intaglio.plugins.micro_kernels.instruction_sets import InstructionSet
from intaglio.plugins.micro_kernels.source import SourceWriter, plus
from intaglio.plugins.micro_kernels.unpacking import Unpacking


class Lines:
    """Levels that lie on lines; s.tables has them all, then the slopes, the starts, and 0 to 7 twice."""

    def __init__(self, isa: InstructionSet, unpacking: Unpacking) -> None:
        self.isa, self.forms, self.unpacking = isa, isa.forms, unpacking

    def constants(self, emit: SourceWriter) -> None:
        """Nothing: a look-up ignores the bits above."""

    def load(self, emit: SourceWriter, row: int) -> None:
        """Load slopes and starts."""
        floats = "reinterpret_cast<const float*>(s.tables)"
        for index, name in enumerate(("slope0", "slope1", "start0", "start1", "step")):
            address = plus(floats, 256 + self.isa.lanes * index)
            emit(f"const {self.forms.floats} {name} = {self.forms.load_table.format(address)};")

    def entries(self, emit: SourceWriter, name: str, row: int, loaded: str, vector: int) -> None:
        """Define `name`, the levels of a vector of the unit that was loaded as `loaded`."""
        at = self.unpacking.place(vector)
        line = f"line{name}"
        emit(f"const {self.forms.integers} {line} = {self.unpacking.shifted(loaded, at._replace(shift=at.shift + 3))};")
        slope, start = (self.forms.look_up_two.format(f"{each}0", f"{each}1", line) for each in ("slope", "start"))
        step = self.forms.look_up.format("step", self.unpacking.shifted(loaded, at))
        emit(f"const {self.forms.floats} {name} = {self.forms.multiply_add.format(slope, step, start)};")


class FloatBits:
    """Levels that have some of a float32's bits; s.tables has them all, then a FloatForm."""

    def __init__(self, isa: InstructionSet, unpacking: Unpacking) -> None:
        self.forms, self.unpacking = isa.forms, unpacking

    def constants(self, emit: SourceWriter) -> None:
        """Nothing: a byte is taken where it lies."""

    def load(self, emit: SourceWriter, row: int) -> None:
        """Load the form."""
        emit(f"const FormVectors form({plus('s.tables', 256 * 4)});")

    def entries(self, emit: SourceWriter, name: str, row: int, loaded: str, vector: int) -> None:
        """Define `name`, the levels of a vector of the unit that was loaded as `loaded`."""
        at = self.unpacking.place(vector)
        levels = self.forms.floats_of.format(at.shift // 8, f"{loaded}_{at.load}", "form")
        emit(f"const {self.forms.floats} {name} = {levels};")
