"""Compiling and packaging the library: errors that only appear on another CPU or without a compiler."""

import ctypes
import itertools
import os
import platform
import shlex
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from intaglio.plugins import OPS, ort
from intaglio.plugins.ort import build

ROOT = build.ROOT


def symbols(path: Path) -> list[tuple[str, str]]:
    """(kind, name) of every symbol of an object file, by `nm`."""
    nm = shutil.which("nm") or pytest.skip("no nm")
    lines = subprocess.run([nm, "-C", "-P", str(path)], capture_output=True, text=True, check=True).stdout.splitlines()
    fields = [line.rsplit(maxsplit=3) if line.split()[-1] != "U" else line.rsplit(maxsplit=1) for line in lines]
    return [(field[1], field[0]) for field in fields]


KERNELS = [source for source in build.sources() if source.instruction_set]


@cache
def kernel_symbols(source: build.Compilation) -> list[tuple[str, str]]:
    return symbols(build.compile_object(source))


@pytest.mark.proof
@pytest.mark.parametrize("source", KERNELS, ids=lambda source: source.name)
def test_kernels_of_different_instruction_sets_share_no_symbol(source):
    """Every definition is local or in the namespace of its instruction set; the linker would merge a weak one."""
    found = kernel_symbols(source)
    shared = [name for kind, name in found if kind in "WVuvw"]
    assert shared == []
    exported = [name for kind, name in found if kind in "TDBRGS"]
    assert exported and all(name.startswith(f"intaglio::{source.instruction_set}::") for name in exported)


@pytest.mark.parametrize("source", KERNELS, ids=lambda source: source.name)
def test_kernels_call_only_the_c_library(source):
    wanted = {name for kind, name in kernel_symbols(source) if kind == "U"}
    assert wanted <= {"memcpy", "memset", "memmove", "memcmp", "sysconf", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}


FLAGS = {
    "portabletiles": "",
    "avx2": "avx2 fma",
    "avx512": "avx512f avx512bw avx512dq avx512vl",
    "avx512vnni": "avx512_vnni",
    "avx512vbmi": "avx512vbmi",
    "amx": "amx_tile amx_int8",
}


def test_library_finds_what_the_kernel_says_of_this_processor(library):
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists() or platform.machine() != "x86_64":
        pytest.skip("no /proc/cpuinfo of an x86-64 processor")
    flags = set(cpuinfo.read_text().partition("\nflags")[2].partition("\n")[0].split())
    known = itertools.takewhile(lambda name: flags.issuperset(FLAGS[name].split()), FLAGS)
    assert ort.supported_instruction_sets() == ("portable", *known)


def test_library_exports_only_its_api(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in lines.stdout.splitlines()}
    assert {name for name in names if not name.startswith("_Z")} == {
        "RegisterCustomOps",
        "getCreators",
        "setLoggerFinder",
        "intaglio_assign_rows",
        "intaglio_cluster_rows",
        "intaglio_cpu",
        "intaglio_isa",
        "intaglio_choose_token",
        "intaglio_likeliest_tokens",
        "intaglio_mask_logits",
        "intaglio_weigh_tokens",
        "intaglio_operators",
        "intaglio_plugin_errors",
        "intaglio_read_memory",
        "intaglio_select_kernel",
        "intaglio_supported_isas",
    }


def test_unchanged_sources_are_not_recompiled(library):
    objects = {path: path.stat().st_mtime_ns for path in build.OBJECTS.iterdir()}
    before = library.stat().st_mtime_ns
    build.build()
    assert {path: path.stat().st_mtime_ns for path in objects} == objects
    assert library.stat().st_mtime_ns == before


def test_concurrent_builds_compile_each_source_once(monkeypatch, tmp_path):
    source, commands, run = tmp_path / "one.cpp", [], build._run
    source.write_text('extern "C" int one() { return 1; }')
    monkeypatch.setattr(build, "OBJECTS", tmp_path / "objects")
    monkeypatch.setattr(build, "sources", lambda _: [build.Compilation(source)])
    monkeypatch.setattr(build, "_run", lambda *arguments: (commands.append(arguments), run(*arguments)))
    with ThreadPoolExecutor(2) as pool:
        libraries = list(pool.map(build.build, [tmp_path / "first.so", tmp_path / "second.so"]))
    assert len(commands) == 2  # an object file, and the library
    assert libraries[0].read_bytes() == libraries[1].read_bytes()


def test_compile_error_keeps_the_previous_library(library, monkeypatch, tmp_path):
    kept = tmp_path / "kernels.so"
    kept.write_bytes(b"the one before")
    broken = tmp_path / "broken.cpp"
    broken.write_text("no C++")
    monkeypatch.setattr(build, "sources", lambda _: [build.Compilation(broken)])
    with pytest.raises(build.CompileError, match=r"broken\.cpp"):
        build.build(kept)
    assert kept.read_bytes() == b"the one before"


def test_compiler_and_linker_take_arguments_from_the_environment(monkeypatch, tmp_path):
    source = tmp_path / "one.cpp"
    source.write_text('extern "C" __attribute__((visibility("default"))) int one() { return WISH; }')
    monkeypatch.setattr(build, "OBJECTS", tmp_path / "objects")
    monkeypatch.setattr(build, "sources", lambda _: [build.Compilation(source)])
    monkeypatch.setenv("CXX", f"{shlex.join(build.compiler())} '-DWISH=3 + 4'")
    monkeypatch.setenv("LDFLAGS", "-s")
    stripped = build.build(tmp_path / "stripped.so")
    assert ctypes.CDLL(str(stripped)).one() == 7
    monkeypatch.delenv("LDFLAGS")
    assert build.build(tmp_path / "whole.so").stat().st_size > stripped.stat().st_size


@pytest.mark.parametrize(
    ("machine", "instruction_sets"),
    [
        ("riscv64", ["portable"]),
        ("aarch64", ["portable", "neon", "dotprod"]),
        ("x86_64", ["portable", "portabletiles", "avx2", "avx512", "avx512vnni", "avx512vbmi", "amx"]),
    ],
)
def test_library_for_another_processor_has_the_kernels_of_that_one(machine, instruction_sets, monkeypatch):
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", f"linux-{machine}")
    assert {source.instruction_set for source in build.sources()} == {None, *instruction_sets}


GENERATE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("kernels", sys.argv[1])
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)
print(sorted(kernels.signatures()))
print(kernels.generated(None) / "schemas" / "operators.h", len(kernels.source_files()))
"""


def copy_of_plugins(folder: Path) -> Path:
    """A copy of plugins/ below `folder`."""
    return Path(shutil.copytree(build.PLUGINS, folder / "plugins", ignore=shutil.ignore_patterns("_kernels.so")))


def generate(plugins: Path) -> str:
    """The schemas of a copy, generated by a Python without packages, as in a wheel build."""
    command = [sys.executable, "-I", "-S", "-c", GENERATE, str(plugins / "ort" / "build.py")]
    done = subprocess.run(command, cwd=plugins, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names, header = done.stdout.splitlines()
    assert names == repr(sorted(operator.folder for operator in OPS.values()))
    return Path(header.split()[0]).read_text()


def test_schemas_are_generated_without_any_package(tmp_path):
    assert generate(copy_of_plugins(tmp_path)) == (build.generated(None) / "schemas" / "operators.h").read_text()


def test_changed_signature_changes_the_schema(tmp_path):
    plugins = copy_of_plugins(tmp_path)
    before = generate(plugins)
    signature = plugins / "int_gelu" / "signature.py"
    signature.write_text(signature.read_text().replace('Attribute("scale", float)', 'Attribute("scale", float, 0.25)'))
    after = generate(plugins)
    changed = [(old, new) for old, new in zip(before.splitlines(), after.splitlines(), strict=True) if old != new]
    ((old, new),) = changed
    assert '{"scale", true, float(0.0), {}}' in old and '{"scale", false, float(0.25), {}}' in new


def make_wheel(folder: Path, compiler: str | None) -> tuple[Path, str]:
    """Build a wheel from a copy of the sources; return the wheel and the output."""
    copy = folder / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode != 0:
        pytest.skip("not in a git checkout")
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file() and not name.startswith(("tests/", "docs/", "benchmarks/")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    if compiler is None:  # reuse compiled files
        shutil.copytree(build.OBJECTS, copy / "build" / "kernels")
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", **({"CXX": compiler} if compiler else {})}
    command = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-v", "-w", str(folder), str(copy)]
    if compiler:  # what pip calls; pip itself takes as long again
        command = ["-c", f"from setuptools.build_meta import build_wheel; build_wheel({str(folder)!r})"]
    command = [sys.executable, *command]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel, done.stdout + done.stderr


@pytest.mark.proof
def test_wheel_holds_the_library_and_is_platform_specific(tmp_path):
    pytest.importorskip("setuptools")
    wheel, _ = make_wheel(tmp_path, None)
    names = zipfile.ZipFile(wheel).namelist()
    assert "intaglio/plugins/ort/_kernels.so" in names
    assert not [name for name in names if name.endswith((".cpp", ".o"))]
    assert wheel.stem.split("-")[2:4] == ["py3", "none"] and not wheel.stem.endswith("-any")


@pytest.mark.proof
def test_missing_compiler_builds_a_wheel_with_a_warning(tmp_path):
    pytest.importorskip("setuptools")
    wheel, output = make_wheel(tmp_path, "/nonexistent")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert wheel.stem.endswith("-py3-none-any")
    listed = subprocess.run(
        ["git", "ls-files", "intaglio", "serve"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules = {name if name.startswith("intaglio/") else f"intaglio/{name}" for name in listed.stdout.split()}
    assert len(modules) > 50 and modules <= set(zipfile.ZipFile(wheel).namelist())
    assert "no CPU kernels, the integer operators will run slowly: no C++ compiler (/nonexistent)" in output
