from collections.abc import Iterator
from types import ModuleType

import pytest
from emulated_driver import EmulatedDriver
from full_tensorrt import full_tensorrt
from plugin_cases import SM
from plugin_library import PluginLibrary


@pytest.fixture(scope="module")
def tensorrt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module `tensorrt`, present only for these tests."""
    with full_tensorrt(tmp_path_factory.mktemp("tensorrt")) as module:
        yield module


@pytest.fixture(scope="module")
def driver() -> EmulatedDriver:
    return EmulatedDriver(SM)


@pytest.fixture
def plugins(driver: EmulatedDriver) -> PluginLibrary:
    made = PluginLibrary()
    made.logged()
    driver.launches.clear()
    driver.sizes.clear()
    return made
