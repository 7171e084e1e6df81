"""`convert` of pytorch_model.bin: every tensor, the head and the tokenizer are kept, and no code is executed."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_decoders import FAMILIES, save_decoder
from tiny_encoder_decoders import save_encoder_decoder

from intaglio.errors import SourceError, UsageError
from intaglio.exporters import convert
from intaglio.exporters.checkpoints.checkpoint import Checkpoint

Weights = dict[str, Any]
Make = Callable[..., Path]
HEADS = [
    *("BertModel", "BertForMaskedLM", "BertForSequenceClassification", "DistilBertForMaskedLM"),
    *("RobertaForSequenceClassification", "XLMRobertaModel", "CamembertForMaskedLM"),
]


def to_pickle(folder: Path, parts: int = 1, **options: Any) -> Weights:
    """Replace model.safetensors by pytorch_model.bin, or by `parts` files with an index; return the weights."""
    import torch
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if parts == 1:
        torch.save(weights, folder / "pytorch_model.bin", **options)
        return weights
    index = {}
    for number in range(parts):
        file = f"pytorch_model-{number + 1:05}-of-{parts:05}.bin"
        names = list(weights)[number::parts]
        torch.save({name: weights[name] for name in names}, folder / file)
        index |= dict.fromkeys(names, file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    return weights


def check_equal(folder: Path, weights: Weights) -> None:
    """Assert that the checkpoint in `folder` has exactly these weights."""
    import torch

    written = {name: mapped.tensor for name, mapped in Checkpoint.open(str(folder)).tensors().items()}
    assert written.keys() == weights.keys()
    for name, tensor in weights.items():
        assert written[name].dtype == tensor.dtype and torch.equal(written[name], tensor), name


@pytest.fixture(scope="module")
def bert(make_checkpoint: Make) -> Path:
    """A checkpoint with pickled weights. Read-only."""
    folder = make_checkpoint("BertForSequenceClassification", num_hidden_layers=1)
    to_pickle(folder)
    return folder


@pytest.fixture
def source(bert: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert, tmp_path / "source"))


@pytest.mark.parametrize("architecture", HEADS)
def test_every_encoder_head_is_kept(architecture: str, make_checkpoint: Make, tmp_path: Path) -> None:
    folder = make_checkpoint(architecture, num_hidden_layers=1)
    weights = to_pickle(folder)
    result = convert(folder, tmp_path / "converted")
    check_equal(tmp_path / "converted", weights)
    assert result.left_out == []
    assert (tmp_path / "converted" / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert (tmp_path / "converted" / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("family", ["gpt2", "opt", "llama", "t5"])
def test_sharded_pickles_of_generative_models_are_converted(family: str, tmp_path: Path) -> None:
    save = save_decoder if family in FAMILIES else save_encoder_decoder
    folder = save(tmp_path / "source", family)
    weights = to_pickle(folder, parts=3)
    convert(folder, tmp_path / "converted")
    check_equal(tmp_path / "converted", weights)
    beside = {path.name for path in folder.iterdir() if "pytorch_model" not in path.name}
    assert {path.name for path in (tmp_path / "converted").iterdir()} == beside | {"model.safetensors"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtype_is_kept(dtype: str, source: Path, tmp_path: Path) -> None:
    import torch

    weights = torch.load(source / "pytorch_model.bin", weights_only=True)
    weights = {name: tensor.to(getattr(torch, dtype)) for name, tensor in weights.items()}
    torch.save(weights, source / "pytorch_model.bin")
    convert(source, tmp_path / "converted")
    check_equal(tmp_path / "converted", weights)


def test_files_of_old_torch_versions_are_read(make_checkpoint: Make, tmp_path: Path) -> None:
    folder = make_checkpoint("DistilBertForMaskedLM", num_hidden_layers=1)
    weights = to_pickle(folder, _use_new_zipfile_serialization=False)
    convert(folder, tmp_path / "converted")
    check_equal(tmp_path / "converted", weights)


def test_missing_pooler_is_not_initialised(make_checkpoint: Make, tmp_path: Path) -> None:
    folder = make_checkpoint("RobertaModel", num_hidden_layers=1)
    weights = to_pickle(folder)
    import torch

    weights = {name: tensor for name, tensor in weights.items() if not name.startswith("pooler.")}
    torch.save(weights, folder / "pytorch_model.bin")
    convert(folder, tmp_path / "converted")
    check_equal(tmp_path / "converted", weights)


def test_unused_weights_are_named(source: Path, tmp_path: Path, intaglio: Callable[..., tuple[int, str, str]]) -> None:
    import torch

    weights = torch.load(source / "pytorch_model.bin", weights_only=True)
    torch.save({**weights, "cls.seq_relationship.weight": torch.zeros(2, 32)}, source / "pytorch_model.bin")
    assert convert(source, tmp_path / "converted").left_out == ["cls.seq_relationship.weight"]
    code, out, _ = intaglio("convert", source, "-o", tmp_path / "again")
    assert code == 0
    assert "skipped, not part of the architecture: cls.seq_relationship.weight" in out
    assert f"Next: intaglio export {tmp_path / 'again'} -o BUNDLE" in out


def test_head_is_kept_without_a_class_name(source: Path, tmp_path: Path) -> None:
    config = json.loads((source / "config.json").read_text())
    del config["architectures"]
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(SourceError, match=r'classifier\.bias.*config\.json lists no "architectures"'):
        convert(source, tmp_path / "converted")
    assert not (tmp_path / "converted").exists()


@pytest.mark.parametrize("change", ["missing", "shape"])
def test_missing_weights_are_named(change: str, source: Path, tmp_path: Path) -> None:
    import torch

    weights = torch.load(source / "pytorch_model.bin", weights_only=True)
    weights["classifier.weight"] = torch.zeros(7, 32)
    if change == "missing":
        del weights["classifier.weight"]
    torch.save(weights, source / "pytorch_model.bin")
    with pytest.raises(SourceError, match=r"1 weights of BertForSequence.*\(classifier\.weight\)"):
        convert(source, tmp_path / "converted")


class Evil:
    """An object whose pickle runs a program when it is loaded."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("kind", ["torch", "plain", "damaged", "empty", "module", "list"])
def test_pickles_with_code_are_refused_and_not_executed(kind: str, source: Path, tmp_path: Path) -> None:
    import torch

    path, trace = source / "pytorch_model.bin", tmp_path / "trace"
    if kind == "torch":
        torch.save({"a": Evil(trace)}, path)
    elif kind == "plain":
        path.write_bytes(pickle.dumps(Evil(trace)))
    elif kind == "module":
        torch.save(torch.nn.Linear(2, 2), path)
    elif kind == "list":
        torch.save({"state_dict": {"a": torch.zeros(2)}, "epoch": 3}, path)
    else:
        path.write_bytes(path.read_bytes()[:1000] if kind == "damaged" else b"")
    with pytest.raises(SourceError) as raised:
        convert(source, tmp_path / "converted")
    assert "\n" not in str(raised.value)
    assert "save_pretrained" in str(raised.value)
    assert not trace.exists()
    assert not (tmp_path / "converted").exists()


def test_folder_without_pickles_names_the_next_step(source: Path, tmp_path: Path) -> None:
    (source / "pytorch_model.bin").rename(source / "model.safetensors")
    with pytest.raises(SourceError, match=r"has model\.safetensors already: intaglio export"):
        convert(source, tmp_path / "converted")
    (source / "model.safetensors").unlink()
    with pytest.raises(SourceError, match="no weights"):
        convert(source, tmp_path / "converted")
    with pytest.raises(SourceError, match="no such file or folder"):
        convert(tmp_path / "nowhere" / "at" / "all", tmp_path / "converted")


def test_file_selects_its_folder_and_existing_output_is_kept(source: Path, tmp_path: Path) -> None:
    convert(source / "pytorch_model.bin", tmp_path / "converted")
    with pytest.raises(UsageError, match="--force"):
        convert(source, tmp_path / "converted")
    convert(source, tmp_path / "converted", force=True)


@pytest.mark.parametrize("name", ["../outside.bin", "/etc/passwd", "missing.bin"])
def test_shards_outside_the_folder_are_refused(name: str, source: Path, tmp_path: Path) -> None:
    (source / "pytorch_model.bin").rename(tmp_path / "outside.bin")
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(SourceError, match=r"stays inside|listed in"):
        convert(source, tmp_path / "converted")
