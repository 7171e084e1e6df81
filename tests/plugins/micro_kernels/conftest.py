"""The library of kernels, and a cache directory of its own for their tables."""

import pytest

from intaglio.plugins import ort
from intaglio.plugins.ort import build


@pytest.fixture(scope="module", autouse=True)
def library(pytestconfig):
    if pytestconfig.getoption("--kernels"):
        return
    try:
        build.compiler()
    except build.CompileError as error:
        pytest.skip(str(error))
    build.build()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache directory; the previous micro-kernels are restored afterwards."""
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path))
        yield tmp_path / "intaglio"
    ort.select_kernels()
