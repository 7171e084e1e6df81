"""Checkpoints of the hub: downloads, sharded caches of links, and one sentence for each error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from foreign_checkpoints import BERT, LLAMA, QUANTISED, WHOLE, tensors, write
from local_hub import COMMIT, LocalHub, local_hub
from tiny_decoders import save_decoder

from intaglio.errors import SourceError
from intaglio.exporters import export
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.kinds import find_kind
from intaglio.exporters.pickled import open_pickled


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A hub on this machine, and an empty cache."""
    from huggingface_hub import constants

    with local_hub() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.address)
        template = running.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield running


def shard(folder: Path) -> None:
    """Split model.safetensors into two files with an index."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {}
    for number in range(2):
        part = {name: weights[name] for name in list(weights)[number::2]}
        save_file(part, folder / f"model-{number + 1:05}-of-00002.safetensors", {"format": "pt"})
        index |= dict.fromkeys(part, f"model-{number + 1:05}-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def test_sharded_checkpoint_is_exported_by_id_by_path_and_offline(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hub.models["org/model"] = save_decoder(tmp_path / "model", "llama")
    shard(folder)
    export("org/model", tmp_path / "by-id", check=False)
    snapshot = tmp_path / "cache" / "models--org--model" / "snapshots" / COMMIT
    assert all(path.is_symlink() for path in snapshot.iterdir())
    export(snapshot, tmp_path / "by-path", check=False)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    export("org/model", tmp_path / "offline", check=False)
    graphs = [(tmp_path / name / "model.onnx").read_bytes() for name in ("by-id", "by-path", "offline")]
    assert graphs[0] == graphs[1] == graphs[2]


def test_shard_outside_the_folder_is_refused_in_a_cache_of_links(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "../../blobs/secret"}}
    folder = write(tmp_path / "snapshots" / "abc", {"config.json": BERT, "model.safetensors.index.json": index})
    write(tmp_path / "blobs", {"secret": WHOLE})
    with pytest.raises(SourceError, match="stays inside"):
        Checkpoint.open(str(folder))


def test_only_tokenizer_models_and_safetensors_are_downloaded(hub: LocalHub, tmp_path: Path) -> None:
    files = {"config.json": LLAMA, "model.safetensors": WHOLE, "tokenizer.model": b"x"}
    others = ("pytorch_model.bin", "tf_model.h5", "consolidated.safetensors", "original/x.safetensors", "onnx/m.onnx")
    hub.models["org/model"] = write(tmp_path / "model", files | dict.fromkeys(others, b"x"))
    Checkpoint.open("org/model")
    assert sorted(hub.downloaded) == ["config.json", "model.safetensors", "tokenizer.model"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (QUANTISED["torchao"].files, "torchao"),
        ({"config.json": {"model_type": "mamba"}, "model.safetensors": WHOLE}, "MambaForCausalLM is not supported"),
        ({"config.json": LLAMA, "pytorch_model.bin": b"x"}, "intaglio convert org/model -o CHECKPOINT"),
        ({"config.json": LLAMA, "tf_model.h5": b"x"}, "TensorFlow"),
        ({"llama-Q4_K_M.gguf": b"GGUF"}, "llama.cpp"),
        ({"adapter_config.json": {"peft_type": "LORA"}, "adapter_model.safetensors": WHOLE}, "without its model"),
        ({"bert/config.json": BERT, "bert/model.safetensors": WHOLE}, "in a subfolder"),
    ],
)
def test_unsupported_model_is_refused_before_its_weights_are_downloaded(
    files: dict[str, bytes], message: str, hub: LocalHub, tmp_path: Path
) -> None:
    hub.models["org/model"] = write(tmp_path / "model", files)
    with pytest.raises(SourceError) as raised:
        Checkpoint.open("org/model", check=find_kind)
    assert message in str(raised.value)
    assert not any(name.endswith((".safetensors", ".bin", ".h5", ".gguf")) for name in hub.downloaded)


def test_only_convert_downloads_pickles(hub: LocalHub, tmp_path: Path) -> None:
    files = {"config.json": LLAMA, "pytorch_model.bin": tensors(a="F32"), "tokenizer.json": "{}"}
    hub.models["org/model"] = write(tmp_path / "model", files)
    assert [path.name for path in open_pickled("org/model").weights] == ["pytorch_model.bin"]
    assert sorted(hub.downloaded) == ["config.json", "pytorch_model.bin", "tokenizer.json"]


@pytest.mark.parametrize(
    ("location", "revision", "message"),
    [
        ("unknown/model", None, "the hub has no model of that name"),
        ("private/model", None, "the hub has no model of that name"),
        ("closed/model", None, "the hub does not let you read it. Log in with: hf auth login"),
        ("gated/model", None, "it is gated at the hub: ask for access"),
        ("broken/model", None, "the hub failed (Server error"),
        ("org/model", "nope", "the hub has no revision 'nope' of it. Check --revision"),
    ],
)
def test_hub_error_is_one_sentence(
    location: str, revision: str | None, message: str, hub: LocalHub, tmp_path: Path
) -> None:
    hub.models["org/model"] = write(tmp_path / "model", {"config.json": BERT, "model.safetensors": WHOLE})
    with pytest.raises(SourceError) as raised:
        Checkpoint.open(location, revision)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 300


@pytest.mark.parametrize("offline", [False, True])
def test_unreachable_hub_is_one_sentence(offline: bool, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # no server listens there
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    with pytest.raises(SourceError) as raised:
        Checkpoint.open("org/model")
    expected = "HF_HUB_OFFLINE forbids to ask the hub" if offline else "the hub cannot be reached. Check the connection"
    assert str(raised.value).startswith(f"source org/model: no such directory, and {expected}")


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c", "models/bert.onnx/x"])
def test_missing_path_is_not_looked_up_on_the_hub(name: str, hub: LocalHub) -> None:
    with pytest.raises(SourceError, match="not a directory"):
        Checkpoint.open(name)
    assert hub.downloaded == []
