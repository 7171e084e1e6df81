"""Which micro-kernel each case uses on a machine: the user's measured table, else the one that is shipped for the CPU,
else the defaults of the instruction set.

A table is a JSON file, named by the CPU as CPUID gives it:

    {"format": 2, "cpu": "AuthenticAMD-25-17",
     "kernels": {"avx512vbmi": [["group_matmul", 4, 2, 1, 2, 4, 32], ...]}}

with operator, bits, planes, rows, m_u, t_u, prefetch (micro_kernel.py). Shipped ones lie in machines/, the
user's, which `intaglio tune` writes, in the cache directory.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from intaglio.errors import storage_errors
from intaglio.files.atomic import atomic_write
from intaglio.files.hashes import cache_directory
from intaglio.files.json_decoder import json_decoder
from intaglio.plugins.group_matmul.signature import LARGEST_GROUP
from intaglio.plugins.micro_kernels.instruction_sets import INSTRUCTION_SETS
from intaglio.plugins.micro_kernels.micro_kernel import BITS, MicroKernel, MicroKernelCase, cases, variants

Selection = dict[MicroKernelCase, MicroKernel]
GroupSize = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_GROUP)]
Row = tuple[str, int, int, int, int, int, GroupSize]


class KernelTable(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a file."""

    format: Literal[2]
    cpu: str
    kernels: dict[str, list[Row]]  # by instruction set


@functools.cache
def emitted(instruction_set: str) -> Mapping[MicroKernelCase, list[MicroKernel]]:
    """The micro-kernels of every case of an instruction set, the default first."""
    isa = INSTRUCTION_SETS[instruction_set]
    return {case: variants(case, isa) for operator in BITS for case in cases(operator, isa)}


def defaults(instruction_set: str) -> Selection:
    """The default of every case of an instruction set."""
    return {case: kernels[0] for case, kernels in emitted(instruction_set).items()}


def selection(cpu: str, instruction_set: str) -> Selection:
    """The micro-kernel of every case on a CPU. A damaged table of the user is ignored with a warning."""
    chosen = defaults(instruction_set) | _kernels(shipped(cpu), cpu, instruction_set)
    path = location(cpu)
    try:
        return chosen | _kernels(path, cpu, instruction_set)
    except (OSError, ValueError) as error:
        warnings.warn(
            f"{path}: not a table of micro-kernels ({' '.join(str(error).split())}); using the defaults. "
            "Measure again with: intaglio tune",
            stacklevel=3,
        )
        return chosen


def location(cpu: str) -> Path:
    """The path of the user's table for a CPU."""
    return cache_directory() / f"micro-kernels-{cpu}.json"


def store(cpu: str, instruction_set: str, chosen: Selection) -> Path:
    """Write the user's table for an instruction set, keeping those of others. Raises `StorageError`."""
    path = location(cpu)
    try:
        table = _read(path, cpu)
    except (OSError, ValueError):
        table = KernelTable(2, cpu, {})
    table.kernels[instruction_set] = [(*kernel.case, *kernel[1:]) for kernel in chosen.values()]
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, msgspec.json.format(msgspec.json.encode(table), indent=1))
    return path


def shipped(cpu: str) -> Path:
    """The path of the table that is shipped for a CPU; it may not exist."""
    return Path(__file__).with_name("machines") / f"{cpu}.json"


def _kernels(path: Path, cpu: str, instruction_set: str) -> Selection:
    """The kernels of a file for an instruction set; empty without a file. Raises ValueError and OSError."""
    if not path.exists():
        return {}
    found = {}
    for operator, bits, planes, rows, *chosen in _read(path, cpu).kernels.get(instruction_set, []):
        kernel = MicroKernel(MicroKernelCase(operator, bits, planes, rows), *chosen)
        if kernel.emitted not in emitted(instruction_set).get(kernel.case, ()):
            raise ValueError(f"this version has no {kernel.name} for {instruction_set}")
        found[kernel.case] = kernel
    return found


def _read(path: Path, cpu: str) -> KernelTable:
    table = json_decoder(KernelTable).decode(path.read_bytes())
    if table.cpu != cpu:
        raise ValueError(f"it is for {table.cpu}, this is {cpu}")
    return table
