"""Compile the library of CPU kernels for ONNX Runtime from the C++ sources in plugins/.

    python plugins/ort/build.py [--sanitize] [--quick] [library]

compiles changed sources; the library is plugins/ort/_kernels.so. `make sanitize` explains the options. The environment
variable CXX is the compiler with its arguments, and LDFLAGS are options for linking, as `make wheel` sets both.

setup.py uses it too, so it imports nothing but the standard library. Objects are kept in build/kernels under the hash
of all their dependencies, so that an unchanged source is never compiled twice. First, the generated headers are written
to build/generated: <instruction set>/micro_kernels by plugins/micro_kernels, and library/schemas by schemas.py from
the signatures of the operators. All of that needs only the standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

PLUGINS = Path(__file__).resolve().parent.parent
LIBRARY = Path(__file__).resolve().parent / "_kernels.so"
ROOT = PLUGINS.parent
OBJECTS = ROOT / "build" / "kernels"
GENERATED = ROOT / "build" / "generated"

FLAGS = (
    *("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-fvisibility=hidden", "-fno-semantic-interposition"),
    *("-Wall", "-Wextra"),
)
# GCC warns that the undefined operands of its own AVX-512 intrinsics are uninitialised (GCC bug 105593).
SANITIZERS = "-fsanitize=address,undefined"
# A report ends the process. Alignment is left out: kernels read packed weights at any address, as x86 allows.
SANITIZE = "-O1", "-g1", SANITIZERS, "-fno-sanitize=alignment", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"
# Clang does not know every name of GCC's warnings.
KERNEL_FLAGS = (
    "-fno-exceptions", "-fno-rtti", "-Wno-unknown-warning-option", "-Wno-uninitialized", "-Wno-maybe-uninitialized",
)  # fmt: skip
# Options by machine, as sysconfig names it, and instruction set; every machine has "portable" before them.
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
VBMI = (*AVX512, "-mavx512vnni", "-mavx512vbmi")
MACHINES: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "portabletiles": ("-DINTAGLIO_TILES=1",),
        "avx2": ("-mavx2", "-mfma", "-mf16c"),
        "avx512": AVX512,
        "avx512vnni": (*AVX512, "-mavx512vnni"),
        "avx512vbmi": VBMI,
        "amx": (*VBMI, "-mamx-tile", "-mamx-int8", "-DINTAGLIO_TILES=1"),
    },
    # What compilers take for granted on AArch64, NEON among it, `portable` has, too.
    "aarch64": {
        "neon": ("-DINTAGLIO_NEON",),
        "dotprod": ("-DINTAGLIO_NEON", "-mcpu=generic+dotprod"),
    },
}
# What a kernel includes that is compiled for the instruction sets with matrix tiles, too.
TILE_UNIT = PLUGINS / "cpu" / "int8" / "tile_unit.h"
INSTRUCTION_SETS: dict[str, tuple[str, ...]] = {"portable": (), **MACHINES["x86_64"], **MACHINES["aarch64"]}


class CompileError(Exception):
    """There is no compiler, or it failed on a source; the message says which."""


class Options(NamedTuple):
    """Options that differ from the build for users."""

    sanitize: bool = False  # with AddressSanitizer and UBSan; who loads the library has to preload theirs
    quick: bool = False  # the portable instruction set alone, not optimised: a sixth of the sanitizers' time

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler's options for every source."""
        return (*(SANITIZE if self.sanitize else ()), *(("-O0", "-DINTAGLIO_PORTABLE") if self.quick else ()))


RELEASE = Options()


class Compilation(NamedTuple):
    """One compilation: a file, and the instruction set if it is a kernel."""

    path: Path
    instruction_set: str | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler's options for this source alone."""
        isa = self.instruction_set
        headers = f"-I{os.path.relpath(generated_folder(isa), ROOT)}"
        return (headers,) if isa is None else (*KERNEL_FLAGS, *INSTRUCTION_SETS[isa], f"-DINTAGLIO_ISA={isa}", headers)

    @property
    def name(self) -> str:
        """A readable name for the object file."""
        return "-".join(filter(None, [self.path.parent.name, self.path.stem, self.instruction_set]))


def sources(options: Options = RELEASE) -> Iterator[Compilation]:
    """Every compilation that the library consists of."""
    for path in sorted(path for path in PLUGINS.rglob("*.cpp") if path.name != "kernel.cpp"):
        yield Compilation(path)
    for path in sorted(PLUGINS.rglob("kernel.cpp")):
        for instruction_set in ("portable",) if options.quick else instruction_sets():
            if instruction_set not in without_tiles() or TILE_UNIT in included(path, instruction_set):
                yield Compilation(path, instruction_set)


def instruction_sets() -> tuple[str, ...]:
    """Those that the library has kernels for on this machine, or the one that it is compiled for."""
    # As setuptools names wheels: what _PYTHON_HOST_PLATFORM says when it compiles for another machine.
    machine = sysconfig.get_platform().rpartition("-")[2]
    return ("portable", *MACHINES.get(machine, {}))


def without_tiles() -> dict[str, str]:
    """The instruction sets with matrix tiles, each with the one whose kernels it has but for products of bytes."""
    tiles: dict[str, str] = _module("micro_kernels.instruction_sets").WITHOUT_TILES
    return tiles


def source_files() -> list[Path]:
    """Every C++ file of the library, except generated ones."""
    files = set().union(*(included(source.path) for source in sources()))
    return sorted(path for path in files if not path.is_relative_to(GENERATED))


@functools.cache
def included(path: Path, instruction_set: str | None = None) -> frozenset[Path]:
    """A C++ file of ours and all of our headers that it includes, directly or not."""
    names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE)
    folders = [path.parent, ROOT, generated(instruction_set)]
    places = [next((folder / name for folder in folders if (folder / name).exists()), None) for name in names]
    return frozenset([path]).union(*(included(place, instruction_set) for place in places if place))


def generated_folder(instruction_set: str | None) -> Path:
    """The folder of the generated headers: of kernels for an instruction set, or (None) of all other sources."""
    return GENERATED / (instruction_set or "library")


@functools.cache
def generated(instruction_set: str | None) -> Path:
    """That folder, with headers that are missing or outdated written."""
    folder = generated_folder(instruction_set)
    for name, text in _headers(instruction_set):
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
                copy = Path(temporary) / path.name
                copy.write_text(text)
                copy.replace(path)
    return folder


def _headers(instruction_set: str | None) -> Iterator[tuple[str, str]]:
    """(name, text) of the generated headers."""
    micro_kernels = _module("micro_kernels.header")
    if instruction_set is None:
        yield "schemas/operators.h", _module("ort.schemas").header(signatures(), micro_kernels.EMITTERS)
    else:
        for name, text in micro_kernels.headers(without_tiles().get(instruction_set, instruction_set)):
            yield f"micro_kernels/{name}", text


def signatures() -> dict[str, Any]:
    """The signature of every operator that has a binding, by its folder."""
    folders = sorted(path.parent for path in PLUGINS.glob("*/ort_binding.cpp"))
    return {folder.name: _module(f"{folder.name}.signature").SIGNATURE for folder in folders}


def _module(name: str) -> ModuleType:
    """Import a module below plugins/ that needs only the standard library, without importing its parent packages."""
    packages = {"intaglio": ROOT / "intaglio", "intaglio.plugins": PLUGINS, "intaglio.plugins.ort": PLUGINS / "ort"}
    for package, folder in packages.items():
        if package not in sys.modules:  # nothing is installed yet: empty ones, which only say where to look
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = [str(folder)]
    return importlib.import_module(f"intaglio.plugins.{name}")


def compiler() -> list[str]:
    """The C++ compiler's command: $CXX, or the first of c++, g++ and clang++. Raises `CompileError`."""
    wish = os.environ.get("CXX")
    names = [wish] if wish else ["c++", "g++", "clang++"]
    for name in names:
        program, *arguments = shlex.split(name)
        if path := shutil.which(program):
            return [path, *arguments]
    raise CompileError(f"no C++ compiler ({', '.join(names)}). Install g++ or clang++, or name one in CXX.")


@functools.cache
def version(*cxx: str) -> str:
    """The compiler's own description, which changes when it is updated."""
    return subprocess.run([*cxx, "--version"], capture_output=True, text=True, check=False).stdout


def compile_object(source: Compilation, options: Options = RELEASE) -> Path:
    """The object file of a source, compiled unless it exists. Raises `CompileError`."""
    cxx = compiler()
    command = [*cxx, *FLAGS, *source.flags, *options.flags, "-I.", "-c", os.path.relpath(source.path, ROOT)]
    hasher = hashlib.sha256(repr((command, version(*cxx))).encode())
    for path in sorted(included(source.path, source.instruction_set)):
        hasher.update(os.path.relpath(path, ROOT).encode() + path.read_bytes())
    target = OBJECTS / f"{source.name}-{hasher.hexdigest()[:16]}.o"
    if not target.exists():
        OBJECTS.mkdir(parents=True, exist_ok=True)
        _run([*command, "-o"], target)
    return target


def build(library: Path = LIBRARY, options: Options = RELEASE) -> Path:
    """Compile changed sources and write `library` if it differs. On `CompileError` the library is unchanged.

    Waits for another process that is compiling: less is left to compile then.
    """
    with _alone():
        return _build(library, options)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    OBJECTS.mkdir(parents=True, exist_ok=True)
    with (OBJECTS / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        yield


def _build(library: Path, options: Options) -> Path:
    included.cache_clear()
    generated.cache_clear()
    with ThreadPoolExecutor(_cpus()) as pool:
        objects = list(pool.map(functools.partial(compile_object, options=options), sources(options)))
    link = [*shlex.split(os.environ.get("LDFLAGS", "")), *([SANITIZERS] if options.sanitize else [])]
    names = " ".join([*(path.name for path in objects), *link])  # each object with the hash of its contents
    linked = OBJECTS / f"library-{hashlib.sha256(names.encode()).hexdigest()[:16]}.so"
    if not linked.exists():
        _run([*compiler(), "-shared", *map(str, objects), *link, "-o"], linked)
    if not library.exists() or library.read_bytes() != linked.read_bytes():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            copy = Path(folder) / library.name
            shutil.copy2(linked, copy)
            copy.replace(library)  # a process that has loaded the old one keeps it
    return library


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(command: list[str], target: Path) -> None:
    """Run a compiler in ROOT that writes `target`; `target` changes only on success."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        output = Path(folder) / target.name
        done = subprocess.run([*command, str(output)], capture_output=True, text=True, cwd=ROOT, check=False)
        if done.returncode != 0:
            raise CompileError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
        if done.stderr:
            sys.stderr.write(done.stderr)
        output.replace(target)


def main() -> None:
    """Compile as the command line asks."""
    parser = argparse.ArgumentParser(description="Compile the library of CPU kernels.")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UBSan")
    parser.add_argument("--quick", action="store_true", help="the portable instruction set alone, not optimised")
    parser.add_argument("library", nargs="?", type=Path, default=LIBRARY)
    given = parser.parse_args()
    try:
        sys.stdout.write(f"{build(given.library, Options(given.sanitize, given.quick))}\n")
    except CompileError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
