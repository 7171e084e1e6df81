"""The CPU kernels of our custom operators, as a library that ONNX Runtime loads.

The library is compiled when Intaglio is installed (`build.py`); without a C++ compiler there is none, and the
operators' bodies in standard ONNX are used instead. docs/extending.md explains how to add an operator.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

from intaglio.errors import UsageError
from intaglio.plugins.micro_kernels import tables
from intaglio.plugins.micro_kernels.instruction_sets import WITHOUT_TILES
from intaglio.plugins.micro_kernels.micro_kernel import GROUP_LEVELS, MicroKernel

if TYPE_CHECKING:
    import onnxruntime


def library() -> Path | None:
    """The path of the compiled library, or None if intaglio was installed without a compiler."""
    path = Path(__file__).resolve().parent / "_kernels.so"  # beside the sources in every editable installation
    return path if path.is_file() else None


def register(options: onnxruntime.SessionOptions) -> bool:
    """Register our operators for sessions with `options`; return False without a library.

    `instruction_set()` selects the kernels, `select_kernels()` their inner loops. Raises `UsageError` if
    this CPU does not support INTAGLIO_ISA.
    """
    path = library()
    if path is None:
        return False
    select_kernels()
    options.register_custom_ops_library(str(path))
    return True


def instruction_set() -> str | None:
    """The instruction set of the kernels for new sessions; None without a library.

    It is the best one that this CPU supports, or the environment variable INTAGLIO_ISA: portable, portabletiles, avx2,
    avx512, avx512vnni, avx512vbmi or amx, on AArch64 portable, neon or dotprod. Raises `UsageError` if the variable has
    another value.
    """
    name = _text("intaglio_isa")
    if name is None and library() is not None:
        offered = ", ".join(supported_instruction_sets())
        raise UsageError(
            f"INTAGLIO_ISA={os.environ.get('INTAGLIO_ISA')}: this CPU offers {offered}. Choose one of them."
        )
    return name


def micro_kernel_set() -> str | None:
    """The instruction set of the micro-kernels, as `instruction_set`: none are made for matrix tiles."""
    name = instruction_set()
    return None if name is None else WITHOUT_TILES.get(name, name)


def select_kernels() -> None:
    """Select the best micro-kernels for this machine for the operators with compressed weights.

    They come from the table written by `intaglio tune`, else the one shipped for this CPU, else the defaults. A damaged
    table is a warning. Without a library this does nothing.
    """
    name, processor = micro_kernel_set(), cpu()
    if name is not None and processor is not None:
        for kernel in tables.selection(processor, name).values():
            select_kernel(kernel)


def select_kernel(kernel: MicroKernel) -> None:
    """Use `kernel` for its case from now on, also in open sessions. Raises ValueError."""
    numbers = (*kernel.case[1:], kernel.m_u, kernel.t_u, kernel.case.operator == GROUP_LEVELS, kernel.prefetch)
    call = ctypes.CDLL(str(library())).intaglio_select_kernel
    if not call(kernel.case.folder.encode(), (ctypes.c_int32 * len(numbers))(*numbers)):
        raise ValueError(f"{library()}: no micro-kernel {kernel.name}")


def cpu() -> str | None:
    """This CPU's maker, family and model, such as "AuthenticAMD-25-17" or "aarch64-65-3340"; None without a library."""
    return _text("intaglio_cpu")


def instruction_set_number() -> int:
    """The index of `instruction_set()` in isa.h, where those that this CPU supports come first."""
    return supported_instruction_sets().index(str(instruction_set()))


def supported_instruction_sets() -> tuple[str, ...]:
    """The instruction sets that this CPU supports and the library has kernels for, the best last."""
    return tuple((_text("intaglio_supported_isas") or "").split())


def plugin_errors() -> list[str]:
    """The errors of the library's TensorRT plugins since the last call; before the first, they are logged."""
    return (_text("intaglio_plugin_errors") or "").splitlines()


def operators() -> tuple[str, ...]:
    """The operators that the library has kernels for."""
    return tuple((_text("intaglio_operators") or "").split())


def _text(function: str) -> str | None:
    """The string returned by a library function without arguments; None for a null pointer, or without a library."""
    path = library()
    if path is None:
        return None
    call = getattr(ctypes.CDLL(str(path)), function)
    call.restype = ctypes.c_char_p
    text: bytes | None = call()
    return None if text is None else text.decode(errors="replace")
