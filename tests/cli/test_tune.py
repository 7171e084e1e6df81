"""`intaglio tune`: sessions use its measurements."""

import json
import warnings
from pathlib import Path

import pytest

from intaglio.cli import main
from intaglio.plugins import ort
from intaglio.plugins.micro_kernels import tables

pytest.importorskip("onnxruntime")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    if ort.library() is None:
        pytest.skip("installed without CPU kernels")
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path))
        yield tmp_path
    ort.select_kernels()


def run(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["intaglio", "tune", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0


def test_quick_tuning_writes_a_table_that_sessions_use(cache, monkeypatch, capsys):
    run(monkeypatch, "--quick", "--json")
    found = json.loads(capsys.readouterr().out)
    path = Path(found["table"])
    assert path.is_relative_to(cache) and path == tables.location(ort.cpu())
    best = {tuple(case[key] for key in ("operator", "bits", "planes", "rows")): case["best"] for case in found["cases"]}
    assert set(best) == set(tables.defaults(found["instruction_set"]))
    assert all(case["best_speed"] >= case["default_speed"] > 0 for case in found["cases"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = tables.selection(ort.cpu(), ort.instruction_set())
    assert {tuple(case): [kernel.m_u, kernel.t_u] for case, kernel in chosen.items()} == best
    assert [kernel.prefetch for kernel in chosen.values()] == [case["prefetch"] for case in found["cases"]]


def test_tuning_table_is_printed(cache, monkeypatch, capsys):
    monkeypatch.setenv("INTAGLIO_ISA", "portable")
    run(monkeypatch, "--quick")
    shown = capsys.readouterr().out
    assert "group_matmul" in shown and "m_u=1 t_u=4" in shown and "stored in" in shown
