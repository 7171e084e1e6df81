"""The library of CPU kernels, compiled from the current sources."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from intaglio.plugins import ort
from intaglio.plugins.ort import build


@pytest.fixture(scope="session", autouse=True)
def library(pytestconfig):
    if given := pytestconfig.getoption("--kernels"):
        return given
    try:
        build.compiler()
    except build.CompileError as error:
        pytest.skip(str(error))
    return build.build()


@pytest.fixture(params=build.instruction_sets())
def instruction_set(request, monkeypatch):
    """Each instruction set of the kernels that this CPU has."""
    if request.param not in ort.supported_instruction_sets():
        pytest.skip(f"this CPU has no {request.param}")
    monkeypatch.setenv("INTAGLIO_ISA", request.param)
    return request.param


@pytest.fixture(scope="session")
def emulator():
    """The command that starts a compiled program: empty, or an emulator of the processor it is compiled for."""
    return shlex.split(os.environ.get("INTAGLIO_EMULATOR", ""))


@pytest.fixture
def check_program(tmp_path, emulator):
    """Compiles a .cpp file of this folder for an instruction set, runs it, and expects that it finds nothing."""

    def check(name, instruction_set, *options):
        if instruction_set not in ort.supported_instruction_sets():
            pytest.skip(f"this CPU has no {instruction_set}")
        program = tmp_path / name
        flags = [*build.INSTRUCTION_SETS[instruction_set], f"-DINTAGLIO_ISA={instruction_set}", f"-I{build.ROOT}"]
        source = Path(__file__).with_name(f"{name}.cpp")
        compilation = [*build.compiler(), "-std=c++17", "-w", *options, *flags, str(source), "-o", str(program)]
        subprocess.run(compilation, check=True)
        done = subprocess.run([*emulator, str(program)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout

    return check
