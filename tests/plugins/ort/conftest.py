"""The library of CPU kernels, compiled from the current sources."""

import pytest

from intaglio.plugins.ort import build


@pytest.fixture(scope="session", autouse=True)
def library():
    try:
        build.compiler()
    except build.CompileError as error:
        pytest.skip(str(error))
    return build.build()
