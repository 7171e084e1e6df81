"""Tokenizers without tokenizer.json: the error names what is needed to read them."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from tiny_decoders import save_decoder

from intaglio.bundle.bundle import Bundle
from intaglio.errors import SourceError, UsageError
from intaglio.exporters import export
from intaglio.runtime.text.tokenizer import TOKENIZER, Tokenizer
from intaglio.samples.sentences import sentences

SENTENCEPIECE = b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\2"  # the first piece of a model
TIKTOKEN = b"IQ== 0\nIg== 1\nIw== 2\n"


find_spec = importlib.util.find_spec


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LLaMA without a tokenizer. Read-only."""
    folder = save_decoder(tmp_path_factory.mktemp("llama"), "llama")
    (folder / TOKENIZER).unlink()
    return folder


@pytest.mark.parametrize("name", ["tokenizer.model", "spiece.model", "sentencepiece.bpe.model"])
@pytest.mark.parametrize(("content", "library"), [(SENTENCEPIECE, "sentencepiece"), (TIKTOKEN, "tiktoken")])
def test_model_file_alone_names_the_required_library(
    name: str, content: bytes, library: str, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module == library else find_spec(module))
    source = Path(shutil.copytree(llama, tmp_path / "source"))
    (source / name).write_bytes(content)
    with pytest.raises(SourceError) as raised:
        export(source, tmp_path / "bundle", check=False)
    assert f"its {name} is " in str(raised.value)
    assert f"pip install {library} protobuf" in str(raised.value)
    assert {"sentencepiece": "tiktoken", "tiktoken": "sentencepiece"}[library] not in str(raised.value).replace(
        name, ""
    )


def test_sentencepiece_model_equals_its_class_or_is_refused(llama: Path, tmp_path: Path) -> None:
    import sentencepiece
    from tokenizers import Tokenizer as Backend

    source = Path(shutil.copytree(llama, tmp_path / "source"))
    (source / "tokenizer_config.json").unlink()
    (tmp_path / "text").write_text("\n".join(sentences()))
    sizes = {"vocab_size": 250, "hard_vocab_limit": False, "minloglevel": 2, "model_type": "bpe"}
    sentencepiece.SentencePieceTrainer.train(input=tmp_path / "text", model_prefix=source / "tokenizer", **sizes)
    with pytest.raises(SourceError, match="with its tokenizer_class"):
        export(source, tmp_path / "bundle", check=False)
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    export(source, tmp_path / "bundle", check=False)
    expected = sentencepiece.SentencePieceProcessor(model_file=str(source / "tokenizer.model"))
    backend = Backend.from_file(str(tmp_path / "bundle" / TOKENIZER))
    for text in sentences()[:20]:
        assert backend.encode(text, add_special_tokens=False).ids == expected.encode(text)


def test_vocabulary_without_merges_is_refused(llama: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(llama, tmp_path / "source"))
    (source / "vocab.json").write_text('{"a": 0, "b": 1}')
    with pytest.raises(SourceError, match=r"vocab\.json lacks its merges\.txt"):
        export(source, tmp_path / "bundle", check=False)


def test_tokenizer_above_an_onnx_folder_is_used(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "model" / "onnx").mkdir(parents=True)
    shutil.copy(tiny_bundle / "model.onnx", tmp_path / "model" / "onnx")
    shutil.copy(tiny_bundle / TOKENIZER, tmp_path / "model")
    export(tmp_path / "model" / "onnx" / "model.onnx", tmp_path / "bundle")
    assert Tokenizer.open(Bundle.open(tmp_path / "bundle")).feeds(["a"])["input_ids"].shape[0] == 1


def test_unsupported_tokenizer_options_are_refused(tiny_bundle: Path, llama: Path, tmp_path: Path) -> None:
    graph = tiny_bundle / "model.onnx"
    with pytest.raises(UsageError, match="--recipe float16"):
        export(graph, tmp_path / "bundle", dtype="float16")
    with pytest.raises(UsageError, match="--features is for the checkpoint of a speech recogniser"):
        export(graph, tmp_path / "bundle", features=True)
    with pytest.raises(UsageError, match="--revision main: is for a hub id"):
        export(llama, tmp_path / "bundle", revision="main")
