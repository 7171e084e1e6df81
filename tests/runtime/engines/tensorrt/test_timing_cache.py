from pathlib import Path
from typing import Any

import pytest

from intaglio.runtime.engines.tensorrt import timing_cache
from intaglio.runtime.engines.tensorrt.library import logger

trt: Any = pytest.importorskip("tensorrt_rtx")

# TensorRT-RTX has the functions for compatibility with TensorRT, and reports that they have no effect.
pytestmark = pytest.mark.filterwarnings("ignore:.*Timing cache operations are no-ops:DeprecationWarning")


@pytest.fixture
def config() -> Any:
    log = logger(trt)
    builder = trt.Builder(log)
    made = builder.create_builder_config()
    yield made


def test_timings_are_separated_by_version_and_capability(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert timing_cache.location("tensorrt 11.4.0.106", 75) == tmp_path / "intaglio/tensorrt-11.4.0.106-sm75.timing"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert timing_cache.location("tensorrt 11.4", 80) == Path.home() / ".cache/intaglio/tensorrt-11.4-sm80.timing"


def test_timings_are_stored_and_reused(config: Any, tmp_path: Path) -> None:
    path = tmp_path / "intaglio" / "timings"
    timing_cache.attach(config, path)
    timing_cache.keep(config, path)
    stored = path.read_bytes()
    assert stored
    timing_cache.attach(config, path)
    assert bytes(config.get_timing_cache().serialize()) == stored
    assert [file.name for file in path.parent.iterdir()] == ["timings"]


def test_damaged_timings_do_not_fail_a_build(config: Any, tmp_path: Path) -> None:
    path = tmp_path / "timings"
    path.write_bytes(b"not a timing cache")
    timing_cache.attach(config, path)
    assert config.get_timing_cache() is not None


def test_unwritable_cache_does_not_fail_a_build(config: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / "file" / "timings"
    timing_cache.attach(config, path)
    timing_cache.keep(config, path)
    assert not path.exists()
