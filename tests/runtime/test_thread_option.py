"""`--threads` limits the threads of every engine that a command opens."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import intaglio
from intaglio.errors import UsageError
from intaglio.processes.threads import usable_threads
from intaglio.runtime import similarity

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of threads of each session that is opened."""
    import onnxruntime

    found: list[int] = []

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, model: Any, options: Any = None, *others: Any, **more: Any):
            given = options or more.get("sess_options")
            found.append(given.intra_op_num_threads)
            super().__init__(model, options, *others, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    return found


def test_run_and_similarity_use_the_threads_option(tiny_bundle: Path, opened: list[int]) -> None:
    list(intaglio.run(tiny_bundle, ["one"], threads=3))
    similarity(tiny_bundle, ["one", "two"], threads=2)
    list(intaglio.run(tiny_bundle, ["one"]))
    assert opened == [3, 2, usable_threads()]


def test_validate_uses_the_threads_option_for_both_models(
    tiny_bundle: Path, tiny_bundle_copy: Path, tmp_path: Path, opened: list[int]
) -> None:
    other = Path(shutil.copytree(tiny_bundle, tmp_path / "other"))
    assert intaglio.validate(tiny_bundle_copy, against=other, samples=2, threads=3).passed
    assert len(opened) >= 2 and set(opened) == {3}


def test_perplexity_uses_the_threads_option(tiny_decoder: Path, tmp_path: Path, opened: list[int]) -> None:
    (tmp_path / "text").write_text("a few words to score, and some more of them")
    intaglio.validate(tiny_decoder, perplexity=tmp_path / "text", report=tmp_path / "reports", threads=3)
    assert opened and set(opened) == {3}


@pytest.mark.parametrize("threads", [0, -1, 5000])
def test_out_of_range_threads_are_rejected(threads: int, tiny_bundle: Path, intaglio_program: Run) -> None:
    with pytest.raises(UsageError, match=f"--threads {threads}: expected 1 to 1024"):
        list(intaglio.run(tiny_bundle, ["one"], threads=threads))
    with pytest.raises(UsageError, match=f"--threads {threads}: expected 1 to 1024"):
        intaglio.validate(tiny_bundle, threads=threads)
    code, _, err = intaglio_program("run", tiny_bundle, "one", "--threads", threads)
    assert code == 2 and "--threads" in err


@pytest.fixture
def intaglio_program(request: pytest.FixtureRequest) -> Run:
    """The fixture `intaglio`, whose name is the package's here."""
    program: Run = request.getfixturevalue("intaglio")
    return program
