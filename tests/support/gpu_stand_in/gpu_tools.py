"""Stand-ins for NVIDIA's tools around the driver: cuBLAS, and what compute-sanitizer finds."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SOURCE = Path(__file__).with_name("cublas.c")


def tell_sanitizer(kernel: str) -> None:
    """Let compute-sanitizer, if this process runs under it, find an access of `kernel`, in its words."""
    if path := os.environ.get("SANITIZER_FINDINGS"):
        with Path(path).open("a", encoding="utf-8") as findings:
            findings.write(
                "========= Invalid __global__ read of size 4 bytes\n"
                f"=========     at {kernel}+0x1a0\n"
                "=========     by thread (3,0,0) in block (1,0,0)\n"
                "=========     Address 0x7f0000000204 is out of bounds\n"
                "=========     and is 5 bytes after the nearest allocation at 0x7f0000000000 of size 512 bytes\n"
                "=========     Saved host backtrace up to driver entry point at kernel launch time\n"
                "=========         Host Frame: main in /home/somebody/program\n"
            )


def build_cublas(directory: Path) -> Path | None:
    """Build `cublas.c`, the stand-in for cuBLAS; None without a compiler of `_Float16`."""
    path = directory / "libcublas.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    command = [compiler or "", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-o", path, SOURCE]
    built = compiler is not None and subprocess.run(command, check=False).returncode == 0
    return path if built else None


def give_cublas(path: str | None) -> None:
    """Let `path` be what is found of cuBLAS, or nothing."""
    from cuda import pathfinder

    def find(name: str) -> Any:
        if name != "cublas" or path is None:
            raise RuntimeError(f"lib{name}.so was not found")
        return SimpleNamespace(abs_path=path)

    pathfinder.load_nvidia_dynamic_lib = find
