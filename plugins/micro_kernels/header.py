"""Writes the headers that a kernel.cpp includes: all micro-kernels of an operator for one instruction set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from intaglio.plugins.micro_kernels import group_bytes, group_words, lut_bytes, lut_words
from intaglio.plugins.micro_kernels.group_matmul import GroupMatMulEmitter
from intaglio.plugins.micro_kernels.instruction_sets import INSTRUCTION_SETS, InstructionSet
from intaglio.plugins.micro_kernels.lut_matmul import LutMatMulEmitter
from intaglio.plugins.micro_kernels.micro_kernel import GROUP_LEVELS, MicroKernel, cases, rows_of, variants
from intaglio.plugins.micro_kernels.source import SourceWriter


class Emitter(Protocol):
    """Writes one micro-kernel."""

    def __init__(self, kernel: MicroKernel, isa: InstructionSet) -> None: ...

    def emit(self, emit: SourceWriter) -> None:
        """The whole function."""


# Operator of `MicroKernelCase` -> what writes a micro-kernel of it, and the C++ type of its argument.
EMITTERS: dict[str, tuple[type[Emitter], str]] = {
    "group_matmul": (GroupMatMulEmitter, "GroupStretch"),
    GROUP_LEVELS: (GroupMatMulEmitter, "GroupStretch"),
    "lut_matmul": (LutMatMulEmitter, "LutStretch"),
}


# What unpacks a weight for many rows of x, in words, or in bytes where vectors of 64 are multiplied.
WORDS = {"group_matmul": group_words.emit_words, "lut_matmul": lut_words.emit_words}
BYTES = {"group_matmul": group_bytes.emit_bytes, "lut_matmul": lut_bytes.emit_bytes}


def headers(instruction_set: str) -> Iterator[tuple[str, str]]:
    """(name, text) of every header for an instruction set, always the same."""
    isa = INSTRUCTION_SETS[instruction_set]
    for operator in EMITTERS:
        yield f"{operator}.h", _header(operator, isa)


def _header(operator: str, isa: InstructionSet) -> str:
    emit = SourceWriter()
    emit(f"// Micro-kernels of {operator} for {isa.name}, written by plugins/micro_kernels: change it there.")
    emit("#pragma once")
    emit("")
    emit("namespace intaglio::INTAGLIO_ISA {")
    emit("namespace {")
    emitter, argument = EMITTERS[operator]
    kernels = [kernel for case in cases(operator, isa) for kernel in variants(case, isa)]
    for kernel in kernels:
        emit("")
        emitter(kernel, isa).emit(emit)
    emit("")
    unpackers = WORDS if isa.bytes and isa.bytes.multiply_words else BYTES if isa.bytes and isa.lanes == 16 else {}
    if operator in unpackers:
        unpackers[operator](emit, isa)
        emit("")
    most = [max(rows_of(operator, planes, isa), default=0) for planes in range(4)]
    emit(f"constexpr int {operator.upper()}_MOST_ROWS[] = {{{', '.join(map(str, most))}}};  // of x, by its planes")
    emit("")
    _table(emit, operator, argument, kernels)
    emit("")
    emit("}  // namespace")
    emit("}  // namespace intaglio::INTAGLIO_ISA")
    return emit.text()


def _table(emit: SourceWriter, operator: str, argument: str, kernels: list[MicroKernel]) -> None:
    emit("// The first of a case is its default.")
    emit(f"const MicroKernel<{argument}> {operator.upper()}_MICRO_KERNELS[] = {{")
    for kernel in kernels:
        case = kernel.case
        numbers = ", ".join(map(str, (*case[1:], kernel.m_u, kernel.t_u, int(operator == GROUP_LEVELS))))
        emit(f"    {{{{{numbers}}}, {kernel.name}}},")
    emit("};")
