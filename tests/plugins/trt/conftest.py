from collections.abc import Iterator
from types import ModuleType

import pytest
from full_tensorrt import full_tensorrt


@pytest.fixture(scope="module")
def tensorrt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module `tensorrt`, present only for these tests."""
    with full_tensorrt(tmp_path_factory.mktemp("tensorrt")) as module:
        yield module
