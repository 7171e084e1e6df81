"""The library of CPU kernels, compiled from the current sources."""

import os
import shlex

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
