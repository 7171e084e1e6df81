"""The buffers of a KV cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from intaglio.errors import UsageError
from intaglio.processes.memory_limit import memory_limit
from intaglio.runtime.sessions.decoder import DecoderSession


def test_cache_that_no_memory_holds_is_refused_before_it_is_written(tiny_decoder: Path) -> None:
    with DecoderSession.open(tiny_decoder, batch=1 << 20) as session:
        with pytest.raises(UsageError, match=r"^a KV cache of 1048576 sequences of 4\d+ slots takes \d+ GB, this mach"):
            session.cache.resize(1 << 22)
        assert session.capacity == 0


def test_limit_is_the_containers_where_it_is_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = memory_limit()
    assert machine is not None and machine > 1e9
    for text, expected in (("1048576\n", 1048576), ("max\n", None), (str(1 << 60), None)):
        (tmp_path / "memory.max").write_text(text)
        monkeypatch.setattr("intaglio.processes.memory_limit.CONTAINER", tmp_path / "memory.max")
        memory_limit.cache_clear()
        found = memory_limit()
        memory_limit.cache_clear()
        assert found == expected or (expected is None and found is not None and found >= machine)
