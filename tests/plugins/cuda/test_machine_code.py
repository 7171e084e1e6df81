"""The integer kernels' machine code for a T4 and an A100, run on the CPU by benchmarks/gpu, equals the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gpu import disassembly, kernel_run
from benchmarks.gpu.counts import Counts
from benchmarks.gpu.disassembly import Code, Instruction
from benchmarks.gpu.limits import GPUS, OPERATORS
from benchmarks.gpu.memory import Memory, sectors, wavefronts
from intaglio.plugins.cuda.launching.geometry import Launch
from intaglio.plugins.kernel_check.case import Case
from intaglio.plugins.kernel_check.cases import cases
from intaglio.plugins.kernel_check.inputs import Sizes

pytest.importorskip("cuda.bindings.nvrtc")

FEW = Sizes(rows=(3,), few_rows=(3,), width=132, inner=132, vocabulary=132)
MANY = Sizes(rows=(1, 9), few_rows=(1, 9), width=768, inner=1024, vocabulary=1500)


@pytest.fixture(autouse=True, scope="module")
def _disassembler() -> None:
    try:
        disassembly.nvdisasm()
    except RuntimeError as error:
        pytest.skip(str(error))


def check(case: Case, sm: int) -> Counts:
    outputs, counts = kernel_run.run_case(case, sm)
    for got, expected in zip(outputs, case.expected(), strict=True):
        np.testing.assert_array_equal(got, expected, f"{case.launch(sm).entry}: {case}")
    return counts


@pytest.mark.parametrize("folder", OPERATORS)
def test_machine_code_for_a_t4_equals_the_reference(folder: str) -> None:
    for case in cases(folder, FEW):
        assert check(case, 75).warps > 0


@pytest.mark.proof
@pytest.mark.parametrize("sm", GPUS)
@pytest.mark.parametrize("folder", OPERATORS)
def test_machine_code_of_all_cases_equals_the_reference(folder: str, sm: int) -> None:
    for case in cases(folder, MANY):
        check(case, sm)


def test_a_changed_instruction_changes_the_outputs() -> None:
    case = next(iter(cases("requantize", FEW)))
    entry, kernels = case.launch(75).entry, kernel_run._kernels("requantize", 75)
    code = kernels[entry]
    shifts = [place for place, each in enumerate(code.instructions) if each.name == "SHF" and "S64" in each.modifiers]
    assert shifts
    damaged = list(code.instructions)
    damaged[shifts[0]] = damaged[shifts[0]]._replace(name="NOP")
    kernels[entry] = replace(code, instructions=damaged)
    try:
        with pytest.raises(AssertionError, match="Mismatched elements"):
            check(case, 75)
    finally:
        kernels[entry] = code


def running(*instructions: Instruction, parameters: bytes = b"") -> Counts:
    end = Instruction("", "EXIT", (), ())
    return kernel_run.run(Code([*instructions, end]), Launch("kernel", (1, 1, 1), (32, 1, 1), ()), parameters, Memory())


def test_unknown_instruction_is_an_error() -> None:
    with pytest.raises(NotImplementedError, match=r"HMMA\.16816\.F32"):
        running(Instruction("", "HMMA", ("16816", "F32"), ("R0", "R4", "R8", "R0")))


def loads(address: str, size: str) -> Iterator[Instruction]:
    yield Instruction("", "MOV", (), ("R2", address))
    yield Instruction("", "MOV", (), ("R3", "RZ"))
    yield Instruction("", "LDG", ("E", size), ("R4", "[R2.64]"))


def test_access_outside_of_the_arrays_or_misaligned_is_an_error() -> None:
    with pytest.raises(IndexError, match="outside of the arrays"):
        running(*loads("0x100", "128"))
    with pytest.raises(IndexError, match="16 bytes are not aligned"):
        running(*loads("0x104", "128"))


def test_lanes_that_branch_apart_meet_again() -> None:
    """Lanes below 16 add 1, the others 2, and all of them 4 behind the barrier."""
    code = Code(
        [
            Instruction("", "S2R", (), ("R0", "SR_TID", "X")),
            Instruction("", "ISETP", ("LT", "AND"), ("P0", "PT", "R0", "0x10", "PT")),
            Instruction("", "BSSY", (), ("B0", "`(.L_meet)")),
            Instruction("P0", "BRA", (), ("`(.L_low)",)),
            Instruction("", "MOV", (), ("R1", "0x2")),
            Instruction("", "BRA", (), ("`(.L_meet)",)),
            Instruction("", "MOV", (), ("R1", "0x1")),
            Instruction("", "BSYNC", (), ("B0",)),
            Instruction("", "SHFL", ("BFLY",), ("PT", "R2", "R1", "0x10", "0x1f")),
            Instruction("", "IADD3", (), ("R1", "R1", "R2", "0x4")),
            Instruction("", "IMAD", ("WIDE",), ("R4", "R0", "0x4", "c[0x0][0x160]")),
            Instruction("", "STG", ("E",), ("[R4.64]", "R1")),
            Instruction("", "EXIT", (), ()),
        ],
        {".L_low": 6, ".L_meet": 7},
    )
    memory = Memory()
    at = memory.put(np.zeros(32, np.int32))
    launch = Launch("kernel", (1, 1, 1), (32, 1, 1), ())
    counts = kernel_run.run(code, launch, at.to_bytes(8, "little"), memory)
    assert (memory.get(at, np.int32, (32,)) == 7).all()
    assert counts.sectors == 4 and counts.warps == 1


def test_conflicts_of_banks_and_sectors_are_counted() -> None:
    lanes = np.arange(32)[:, None]
    assert wavefronts(lanes * 4 + np.arange(4)) == 1
    assert wavefronts(lanes * 8 + np.arange(4)) == 2
    assert wavefronts(lanes * 128 + np.arange(4)) == 32
    assert wavefronts(lanes * 16 + np.arange(16)) == 4
    assert wavefronts(lanes * 0 + np.arange(4)) == 1
    assert sectors(lanes * 4 + np.arange(4)) == 4
    assert sectors(lanes * 32 + np.arange(4)) == 32
