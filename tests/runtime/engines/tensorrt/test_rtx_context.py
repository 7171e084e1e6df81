"""Contexts of TensorRT-RTX: the calls that they make exist in the library, and compiled code is kept between runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from intaglio.extras import load
from intaglio.runtime.engines.tensorrt.graph_replay import DISABLED
from intaglio.runtime.engines.tensorrt.rtx_context import RtxContext, location


class Cache:
    """`IRuntimeCache`, which takes what it has written."""

    def __init__(self) -> None:
        self.content = b""

    def deserialize(self, blob: bytes) -> bool:
        taken = blob.startswith(b"code of this version")
        self.content = blob if taken else self.content
        return taken

    def serialize(self) -> bytes:
        return self.content


class Config:
    """`IRuntimeConfig`."""

    cuda_graph_strategy = "DISABLED"

    def create_runtime_cache(self) -> Cache:
        self.cache = Cache()
        return self.cache

    def set_runtime_cache(self, cache: Cache) -> bool:
        return cache is self.cache


class Engine:
    """`ICudaEngine`, whose context compiles something."""

    def __init__(self) -> None:
        self.config = Config()
        self.compiled = 0

    def create_runtime_config(self) -> Config:
        return self.config

    def create_execution_context(self, config: Config | None = None) -> str:
        if config is not None and not config.cache.content:
            self.compiled += 1
            config.cache.content = b"code of this version"
        return "context"


RTX: Any = SimpleNamespace(CudaGraphStrategy=SimpleNamespace(WHOLE_GRAPH_CAPTURE="WHOLE_GRAPH_CAPTURE"))


def compiled(code: Path) -> int:
    """How often a run compiles."""
    engine = Engine()
    made = RtxContext(RTX, engine, code)
    assert made.context == "context"
    made.close()
    made.close()
    return engine.compiled


def test_code_is_compiled_once(tmp_path: Path) -> None:
    code = tmp_path / "new" / "engine.code"
    assert [compiled(code), compiled(code)] == [1, 0]
    assert code.read_bytes() == b"code of this version"
    written = code.stat().st_mtime_ns
    assert compiled(code) == 0 and code.stat().st_mtime_ns == written


def test_code_of_another_version_is_replaced(tmp_path: Path) -> None:
    code = tmp_path / "engine.code"
    code.write_bytes(b"damaged")
    assert [compiled(code), compiled(code)] == [1, 0]


def test_code_that_cannot_be_kept_costs_time_alone(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    assert compiled(tmp_path / "a file" / "engine.code") == 1


def test_older_library_keeps_nothing(tmp_path: Path) -> None:
    engine: Any = SimpleNamespace(create_execution_context=lambda: "context")
    made = RtxContext(RTX, engine, tmp_path / "code")
    made.close()
    assert made.context == "context" and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("setting", "strategy"), [("", "WHOLE_GRAPH_CAPTURE"), ("0", "DISABLED")])
def test_it_captures_graphs_unless_told_not_to(
    setting: str, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DISABLED, setting)
    engine = Engine()
    RtxContext(RTX, engine, tmp_path / "code")
    assert engine.config.cuda_graph_strategy == strategy


def test_files_differ_by_engine_library_and_gpu() -> None:
    names = {
        location(*each).name for each in (("a" * 64, "l 1", "t4"), ("b" * 64, "l 1", "t4"), ("a" * 64, "l 2", "t4"))
    }
    assert len({*names, location("a" * 64, "l 1", "a100").name}) == 4
    assert all(" " not in name for name in names)


def test_the_library_has_what_is_called() -> None:
    pytest.importorskip("tensorrt_rtx_libs")
    trt = load("tensorrt_rtx")
    assert trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
    for kind, names in (
        (trt.ICudaEngine, ["create_runtime_config", "create_execution_context"]),
        (trt.IRuntimeConfig, ["cuda_graph_strategy", "create_runtime_cache", "set_runtime_cache"]),
        (trt.IRuntimeCache, ["serialize", "deserialize"]),
    ):
        assert [name for name in names if not hasattr(kind, name)] == []
