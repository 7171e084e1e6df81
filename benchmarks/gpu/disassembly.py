"""A kernel's machine code (SASS), as NVIDIA's `nvdisasm` prints it: `pip install nvidia-cuda-nvdisasm`."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

LINE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")


class Instruction(NamedTuple):
    """`@guard name.modifiers operands`."""

    guard: str
    name: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]


@dataclass
class Code:
    """A kernel's instructions, the places of its labels among them, and the numbers that it has in constant memory."""

    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    literals: bytearray = field(default_factory=bytearray)


ALU = {"IADD3", "IMNMX", "SHF", "LOP3", "ISETP", "SEL", "PRMT", "LEA", "IABS", "PLOP3", "P2R", "MOV"}
FMA = {"CS2R"}
MEMORY = {"LDG", "STG", "LDS", "STS", "SHFL", "S2R", "R2UR"}
SLOW = {"MUFU", "I2F", "F2I"}


def unit_of(instruction: Instruction) -> str:
    """The unit of a multiprocessor that an instruction occupies."""
    name, modifiers = instruction.name, instruction.modifiers
    if name == "IMAD":
        return "fma wide" if {"WIDE", "HI"} & set(modifiers) else "fma"
    for unit, names in (("alu", ALU), ("fma", FMA), ("memory", MEMORY), ("slow", SLOW)):
        if name in names:
            return unit
    return "uniform" if name.startswith("U") else "control"


def disassemble(cubin: bytes) -> dict[str, Code]:
    """The code of each kernel of a cubin. Raises `RuntimeError` without nvdisasm."""
    program = nvdisasm()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        found = subprocess.run([program, file.name], capture_output=True, text=True, check=True)
    kernels: defaultdict[str, Code] = defaultdict(Code)
    kind, code = "", Code()
    for line in found.stdout.splitlines():
        if line.lstrip().startswith(".section"):
            kind = ""
        elif section := re.match(r"\.(text|nv\.constant2)\.(\S+):", line):
            kind, code = section[1], kernels[section[2]]
        elif kind == "nv.constant2" and ".byte" in line:
            code.literals += bytes(int(each, 16) for each in re.findall(r"0x[0-9a-f]{2}\b", line.split(".byte")[1]))
        elif kind == "text" and (label := re.match(r"(\.L_\S+|\$\S+):", line)):
            code.labels[label[1]] = len(code.instructions)
        elif kind == "text" and (parts := LINE.match(line)):
            name, *modifiers = parts[3].split(".")
            operands = tuple(part.strip() for part in parts[4].split(",")) if parts[4] else ()
            code.instructions.append(Instruction(parts[2] or "", name, tuple(modifiers), operands))
    return kernels


def nvdisasm() -> str:
    """The path of the program. Raises `RuntimeError` if it is not installed."""
    if found := shutil.which("nvdisasm"):
        return found
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise RuntimeError("there is no nvdisasm. Install it with: pip install nvidia-cuda-nvdisasm") from error
    (path,) = [Path(str(file.locate())) for file in files if file.name == "nvdisasm"]
    path.chmod(0o755)  # pip sets no permissions
    return str(path)
