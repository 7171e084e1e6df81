"""A run that ended early goes on from its finished layers, to the same bytes; layers of other runs are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intaglio.errors import UsageError
from intaglio.graph_passes import compress
from intaglio.graph_passes.calibration.stream import Stream
from intaglio.graph_passes.finished_layers import NOTHING_FINISHED, FinishedLayers, kept_beside
from intaglio.graph_passes.weights import mixed
from intaglio.samples.sentences import sentences


class KilledError(Exception):
    """In place of a signal."""


def folder_of(output: Path) -> Path:
    return output.with_name(f".{output.name}.intaglio-resume")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(sentences()[:20]))
    return path


@pytest.mark.parametrize("recipe", ["gptq", pytest.param("lut-sparse", marks=pytest.mark.proof)])
def test_a_killed_run_goes_on_from_its_finished_layers(
    recipe: str, tiny_decoder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"calibration": text, "bits": 3}
    computed: list[str] = []
    moments, put = Stream.second_moments, FinishedLayers.put

    def counted(self: Stream, value: Any, *arguments: Any) -> Any:
        computed.append(value.name)
        return moments(self, value, *arguments)

    def killing(self: FinishedLayers, layer: str, **arrays: Any) -> None:
        if len(list(folder_of(tmp_path / "resumed").glob("*.npz"))) == 4:
            raise KilledError
        put(self, layer, **arrays)

    monkeypatch.setattr(Stream, "second_moments", counted)
    compress(tiny_decoder, tmp_path / "whole", recipe, **options)
    uninterrupted = list(computed)
    with monkeypatch.context() as patched, pytest.raises(KilledError):
        patched.setattr(FinishedLayers, "put", killing)
        compress(tiny_decoder, tmp_path / "resumed", recipe, resume=True, **options)
    assert not (tmp_path / "resumed").exists()
    computed.clear()
    assert compress(tiny_decoder, tmp_path / "resumed", recipe, resume=True, **options).resumed == 4
    assert len(computed) == len(uninterrupted) - 4
    assert not folder_of(tmp_path / "resumed").exists()
    for name in ("model.onnx", "bundle.json"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_killed_search_measures_no_layer_again(
    tiny_decoder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    compressed, put = mixed.compressed, FinishedLayers.put

    def counted(*arguments: Any) -> Any:
        measured.append("once")
        return compressed(*arguments)

    def killing(self: FinishedLayers, layer: str, **arrays: Any) -> None:
        if len(list(folder_of(tmp_path / "resumed").glob("*.npz"))) == 3:
            raise KilledError
        put(self, layer, **arrays)

    monkeypatch.setattr(mixed, "compressed", counted)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("passes: [mixed: {bits_per_weight: 14, compensate: false}]")
    compress(tiny_decoder, tmp_path / "whole", recipe, calibration=text)
    uninterrupted = len(measured)
    with monkeypatch.context() as patched, pytest.raises(KilledError):
        patched.setattr(FinishedLayers, "put", killing)
        compress(tiny_decoder, tmp_path / "resumed", recipe, calibration=text, resume=True)
    measured.clear()
    compress(tiny_decoder, tmp_path / "resumed", recipe, calibration=text, resume=True)
    assert len(measured) == uninterrupted - 3 * 6  # each layer with 2, 3 and 4 bits, with and without sparse weights
    for name in ("model.onnx", "bundle.json"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_layers_of_another_run_are_refused(tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    with pytest.raises(KilledError), kept_beside(output, {"recipe": "gptq", "bits": 4}):
        raise KilledError
    with (
        pytest.raises(UsageError, match="another run, which differs in: bits"),
        kept_beside(output, {"recipe": "gptq", "bits": 3}),
    ):
        pass
    with kept_beside(output, {"recipe": "gptq", "bits": 4}):
        pass
    assert not folder_of(output).exists()


def test_a_second_process_with_the_same_output_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    with kept_beside(output, {}), pytest.raises(UsageError, match="another process uses"), kept_beside(output, {}):
        pass


def test_a_link_or_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder_of(tmp_path / "linked").symlink_to(tmp_path)
    folder_of(tmp_path / "file").touch()
    for name in ("linked", "file"):
        with pytest.raises(UsageError, match="is no folder of layers"), kept_beside(tmp_path / name, {}):
            pass


def test_damaged_layers_do_not_count(tmp_path: Path) -> None:
    finished = FinishedLayers(tmp_path)
    finished.put("a/b", codes=np.arange(6, dtype=np.uint8).reshape(2, 3))
    np.testing.assert_array_equal(finished.read("a/b")["codes"], [[0, 1, 2], [3, 4, 5]])
    assert "a/b" in finished
    assert "a" not in finished
    assert "a/b" not in finished.of_pass(1)
    assert "a/b" not in NOTHING_FINISHED
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    assert "a/b" not in finished
    with pytest.raises(UsageError, match="cannot be read"):
        finished.read("a/b")


def test_resume_and_executors_that_no_pass_uses_are_refused(tiny_decoder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no pass of recipe rtn keeps finished layers"):
        compress(tiny_decoder, tmp_path / "out", "rtn", resume=True)
    with pytest.raises(UsageError, match="no pass of recipe rtn divides its work"):
        compress(tiny_decoder, tmp_path / "out", "rtn", executor="processes:2")
