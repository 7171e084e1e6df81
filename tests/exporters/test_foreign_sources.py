"""Any folder or file given as a checkpoint: one line names its kind and the next step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from foreign_checkpoints import BERT, FOREIGN, LLAMA, QUANTISED, WHOLE, Case, tensors, write

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.adapters import left_out
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.contents import refuse_file
from intaglio.exporters.checkpoints.quantized.methods import METHODS
from intaglio.exporters.pickled import open_pickled
from intaglio.graph_passes.recipes.recipes import RECIPES

Program = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("name", [*QUANTISED, *FOREIGN])
def test_each_foreign_source_gets_its_own_next_step(name: str, tmp_path: Path, intaglio: Program) -> None:
    case: Case = {**QUANTISED, **FOREIGN}[name]
    folder = write(tmp_path / "source", case.files)
    out = tmp_path / "out"
    out.mkdir()
    source = folder / case.given if case.given else folder
    code, printed, errors = intaglio("export", source, "-o", out / "bundle")
    assert (code, printed, list(out.iterdir())) == (2, "", [])
    (line,) = errors.strip().splitlines()
    assert "bug in intaglio" not in line
    assert len(line) < 700
    for part in case.says:
        assert part.format(folder=folder) in line


@pytest.mark.parametrize("name", [name for name in QUANTISED if QUANTISED[name].files["config.json"] != LLAMA])
def test_quantised_weights_are_named_before_they_are_converted(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "source", {**QUANTISED[name].files, "pytorch_model.bin": b"x"})
    (folder / "model.safetensors").unlink(missing_ok=True)
    with pytest.raises(SourceError, match="quantised already"):
        open_pickled(str(folder))


def test_every_method_names_a_recipe_that_exists() -> None:
    assert {method.recipe for method in METHODS.values()} <= RECIPES.keys()


@pytest.mark.parametrize(
    "section",
    [None, {}, {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": False}],
)
def test_empty_quantisation_section_is_accepted(section: object, tmp_path: Path) -> None:
    folder = write(
        tmp_path / "bert", {"config.json": {**BERT, "quantization_config": section}, "model.safetensors": WHOLE}
    )
    assert Checkpoint.open(str(folder)).weights == (folder / "model.safetensors",)


def test_files_of_other_tools_are_ignored(tmp_path: Path) -> None:
    others = (
        "pytorch_model.bin",
        "tf_model.h5",
        "flax_model.msgpack",
        "onnx/model.onnx",
        "model.gguf",
        "x.zip",
        "a.ckpt",
    )
    files = {"config.json": BERT, "model.safetensors": WHOLE, "consolidated.safetensors": WHOLE}
    folder = write(tmp_path / "bert", files | dict.fromkeys(others, b"x"))
    assert Checkpoint.open(str(folder)).weights == (folder / "model.safetensors",)


def test_lfs_pointers_of_unused_files_are_ignored(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    files = {"config.json": BERT, "model.safetensors": WHOLE, "tf_model.h5": pointer, "plot.png": pointer}
    Checkpoint.open(str(write(tmp_path / "bert", files)))


def test_integer_buffers_are_ignored(tmp_path: Path) -> None:
    weights = tensors(embeddings__position_ids="I64", weight="F16", mask="U8")
    Checkpoint.open(str(write(tmp_path / "bert", {"config.json": BERT, "model.safetensors": weights})))


def test_adapter_in_a_subfolder_is_noted(tmp_path: Path) -> None:
    files = {"config.json": LLAMA, "model.safetensors": WHOLE, "other/adapter_config.json": {"peft_type": "LORA"}}
    folder = write(tmp_path / "llama", files)
    Checkpoint.open(str(folder))
    assert left_out(folder) == ["other/ has an adapter (LORA), which is left out"]


def test_dangling_link_names_its_target(tmp_path: Path) -> None:
    folder = write(tmp_path / "bert", {"config.json": BERT})
    (folder / "model.safetensors").symlink_to("../../blobs/abc")
    with pytest.raises(SourceError, match=r"model\.safetensors: a link to \.\./\.\./blobs/abc, which is missing"):
        Checkpoint.open(str(folder))


def test_large_unknown_file_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.unknown"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse, and larger than the memory
    assert "a file, not a directory" in str(refuse_file(path))
