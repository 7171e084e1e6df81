"""The choice of micro-kernels for a machine, and the files that hold it."""

import json
import warnings

import pytest

from intaglio.plugins import ort
from intaglio.plugins.micro_kernels import tables


@pytest.mark.parametrize("path", sorted(tables.shipped("x").parent.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_tables_name_kernels_that_are_emitted(path, cache):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in json.loads(path.read_text())["kernels"]:
            assert tables._kernels(path, path.stem, name)


def test_stored_table_is_used_and_keeps_other_instruction_sets(cache):
    other = {case: kernels[-1]._replace(prefetch=32) for case, kernels in tables.emitted("avx2").items()}
    assert tables.selection("Some-1-2", "avx2") == tables.defaults("avx2")
    tables.store("Some-1-2", "avx2", other)
    tables.store("Some-1-2", "portable", tables.defaults("portable"))
    assert tables.selection("Some-1-2", "avx2") == other != tables.defaults("avx2")
    assert tables.selection("Another-1-2", "avx2") == tables.defaults("avx2")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"format": 1, "cpu": "Some-1-2", "kernels": {}}',
        b'{"format": 2, "cpu": "Other-1-2", "kernels": {}}',
        b'{"format": 2, "cpu": "Some-1-2", "kernels": {"avx2": [["group_matmul", 4, 0, 1, 64, 64, 0]]}}',
        b'{"format": 2, "cpu": "Some-1-2", "kernels": {"avx2": [["group_matmul", 4, 0, 1, 2]]}}',
        b'{"format": 2, "cpu": "Some-1-2", "kernels": {"avx2": [["group_matmul", 4, 0, 1, 8, 2, -1]]}}',
    ],
)
def test_damaged_table_gives_one_warning_and_the_defaults(content, cache):
    cache.mkdir()
    tables.location("Some-1-2").write_bytes(content)
    with pytest.warns(UserWarning, match="not a table of micro-kernels") as caught:
        assert tables.selection("Some-1-2", "avx2") == tables.defaults("avx2")
    assert len(caught) == 1 and "\n" not in str(caught[0].message)


def test_session_opens_despite_a_damaged_table(cache):
    onnxruntime = pytest.importorskip("onnxruntime")
    cache.mkdir()
    tables.location(ort.cpu()).write_text("nonsense")
    with pytest.warns(UserWarning, match="intaglio tune"):
        assert ort.register(onnxruntime.SessionOptions())


def test_unwritable_table_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(NotADirectoryError):
        tables.store("Some-1-2", "avx2", tables.defaults("avx2"))
