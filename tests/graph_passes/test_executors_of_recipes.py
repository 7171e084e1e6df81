"""Recipes give the same bytes with processes as without, and processes take no more threads than `threads`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from intaglio.executors.process_pool import ProcessPool
from intaglio.graph_passes import compress
from intaglio.samples.sentences import sentences
from intaglio.training import sensitivity


class Entered(Exception):  # noqa: N818  # tells what a pool would have started
    pass


@pytest.mark.parametrize(("executor", "expected"), [("processes:1", (1, 3)), ("processes", (3, 1))])
@pytest.mark.parametrize("verb", [partial(compress, recipe="gptq"), sensitivity], ids=["compress", "sensitivity"])
def test_processes_divide_the_threads_that_were_given(
    verb: Callable[..., object], executor: str, expected: tuple[int, int], tiny_decoder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def enter(pool: ProcessPool) -> None:
        raise Entered(pool._processes, pool._threads)

    monkeypatch.setattr(ProcessPool, "__enter__", enter)
    text = written(tmp_path)
    with pytest.raises(Entered) as found:
        verb(tiny_decoder, tmp_path / "out", calibration=text, executor=executor, threads=3)
    assert found.value.args == expected


@pytest.mark.proof  # each process imports the passes: seconds
@pytest.mark.parametrize("recipe", ["int8-only", "int8-qdq"])
def test_calibrated_encoders_have_the_same_bytes(recipe: str, minilm_bundle: Path, tmp_path: Path) -> None:
    same_bytes(minilm_bundle, recipe, tmp_path)


@pytest.mark.proof
@pytest.mark.parametrize("recipe", ["gptq", "awq", "lut", "lut-sparse", "mixed"])
def test_compressed_decoders_have_the_same_bytes(recipe: str, tiny_decoder: Path, tmp_path: Path) -> None:
    if recipe == "mixed":  # the rows are short, so that their tables take bits
        recipe = str(tmp_path / "mixed.yaml")
        Path(recipe).write_text("passes: [{mixed: {bits_per_weight: 12}}]")
    same_bytes(tiny_decoder, recipe, tmp_path)


def same_bytes(bundle: Path, recipe: str, folder: Path) -> None:
    text = written(folder)
    for executor in ("inline", "processes:2"):
        compress(bundle, folder / executor, recipe, calibration=text, executor=executor)
    for name in ("model.onnx", "bundle.json"):
        assert (folder / "processes:2" / name).read_bytes() == (folder / "inline" / name).read_bytes()


def written(folder: Path) -> Path:
    """A text to calibrate with."""
    text = folder / "text.txt"
    text.write_text("\n".join(sentences()[:20]))
    return text
