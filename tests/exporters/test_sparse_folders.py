"""Folders of sparse encoders: weights of tokens equal the library, or the unsupported setting is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import few
from sentence_folders import TEXTS, edit, read, write

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError, SourceError, UsageError
from intaglio.exporters import export
from intaglio.runtime import run, similarity

BOUND = 1e-5  # absolute error of a weight
CASES = [(strategy, activation) for strategy in ("max", "sum") for activation in ("relu", "log1p_relu")]
SETTINGS = {"tokenizer_class": "BertTokenizer", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]",
            "mask_token": "[MASK]", "unk_token": "[UNK]"}  # fmt: skip


@pytest.fixture(scope="module")
def masked(make_checkpoint: Callable[..., Path]) -> Path:
    """A small checkpoint with the head for masked tokens."""
    folder = make_checkpoint("BertForMaskedLM", num_hidden_layers=1)
    write(folder / "tokenizer_config.json", SETTINGS)
    return folder


def make(checkpoint: Path, folder: Path, strategy: str = "max", activation: str = "relu") -> Path:
    """A folder of the library."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    modules: list[Any] = [Transformer(str(checkpoint), transformer_task="fill-mask")]
    modules.append(SpladePooling(strategy, activation))  # type: ignore[arg-type]
    model = SparseEncoder(modules=modules, prompts={"query": "q: "}, device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def dense(results: Any, vocabulary: dict[str, int], width: int) -> np.ndarray[Any, Any]:
    """The weights of texts, [texts, vocabulary]."""
    found = np.zeros((len(results), width), np.float32)
    for row, result in zip(found, results, strict=True):
        assert list(result.weights.values()) == sorted(result.weights.values(), reverse=True)
        for token, weight in result.weights.items():
            row[vocabulary.get(token, -1) if token in vocabulary else int(token[1:-1])] = weight
    return found


@pytest.mark.parametrize(("strategy", "activation"), few(CASES, [CASES[0]]))
def test_weights_equal_sentence_transformers(strategy: str, activation: str, masked: Path, tmp_path: Path) -> None:
    from sentence_transformers import SparseEncoder
    from tokenizers import Tokenizer

    source = make(masked, tmp_path / "source", strategy, activation)
    export(str(source), tmp_path / "bundle", check=False)
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert manifest.task == "embed-sparse" and [each.name for each in manifest.outputs] == ["sentence_embedding"]
    model = SparseEncoder(str(source), device="cpu")
    vocabulary = Tokenizer.from_file(str(tmp_path / "bundle" / "tokenizer.json")).get_vocab()
    for prompt in (None, "query"):
        wanted = np.array([model.encode([text], prompt_name=prompt).to_dense().numpy()[0] for text in TEXTS])
        found = list(run(tmp_path / "bundle", TEXTS, truncate=True, prompt_name=prompt))
        assert (wanted > 0).any()
        np.testing.assert_allclose(dense(found, vocabulary, wanted.shape[1]), wanted, rtol=0, atol=BOUND)


def test_folder_of_an_older_version_and_the_command_line(
    masked: Path, tmp_path: Path, intaglio: Callable[..., tuple[int, str, str]]
) -> None:
    """Which names the Transformer MLMTransformer, and the other classes in other modules."""
    source = make(masked, tmp_path / "source")
    names = (
        "sentence_transformers.sparse_encoder.models.MLMTransformer",
        "sentence_transformers.sparse_encoder.models.SpladePooling",
    )
    write(
        source / "modules.json",
        [each | {"type": name} for each, name in zip(read(source / "modules.json"), names, strict=True)],
    )
    write(source / "sentence_bert_config.json", {"max_seq_length": 40, "do_lower_case": False})
    export(str(source), tmp_path / "bundle", check=False)
    code, printed, _ = intaglio("run", str(tmp_path / "bundle"), "a text", "--json")
    weights = json.loads(printed)["weights"]
    assert code == 0 and all(weight > 0 for weight in weights.values())
    code, printed, _ = intaglio("run", str(tmp_path / "bundle"), "a text")
    assert code == 0 and f"… {len(weights)} tokens]  a text" in printed
    with pytest.raises(UsageError, match="--similarity compares embeddings"):
        similarity(tmp_path / "bundle", TEXTS)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no token at all": ("config_sentence_transformers.json", {"max_active_dims": 0}, "max_active_dims is 0"),
    "another strategy": ("1_SpladePooling/config.json", {"pooling_strategy": "mean"}, "pooling_strategy 'mean' is not"),
    "another activation": (
        "1_SpladePooling/config.json",
        {"activation_function": "gelu"},
        "activation_function 'gelu'",
    ),
    "an unknown setting": ("1_SpladePooling/config.json", {"chunks": 2}, "the setting 'chunks' is not supported"),
    "a dense model": (
        "config_sentence_transformers.json",
        {"model_type": "SentenceTransformer"},
        "expected one Pooling",
    ),
    "several vectors": (
        "config_sentence_transformers.json",
        {"model_type": "MultiVectorEncoder"},
        "SpladePooling is not supported on token_embeddings",
    ),
    "another task": ("sentence_bert_config.json", {"transformer_task": "feature-extraction"}, "transformer_task"),
    "hidden states": (
        "sentence_bert_config.json",
        {"modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}},
        "modality_config",
    ),
}


@pytest.mark.parametrize(("file", "changes", "message"), REFUSED.values(), ids=REFUSED)
def test_unsupported_setting_is_refused_by_name(
    file: str, changes: dict[str, Any], message: str, masked: Path, tmp_path: Path
) -> None:
    source = make(masked, tmp_path / "source")
    edit(source / file, **changes)
    with pytest.raises(SourceError) as refused:
        export(str(source), tmp_path / "bundle", check=False)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_other_modules_after_the_pooling_are_refused(masked: Path, tmp_path: Path) -> None:
    source = make(masked, tmp_path / "source")
    modules = read(source / "modules.json")
    more = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
    write(source / "modules.json", [*modules, more])
    with pytest.raises(SourceError, match="expected SpladePooling alone after the Transformer"):
        export(str(source), tmp_path / "bundle", check=False)
    shutil.rmtree(source / "1_SpladePooling")
    with pytest.raises(SourceError):
        export(str(source), tmp_path / "bundle", check=False)


@pytest.mark.proof
def test_largest_weights_alone_equal_the_library(masked: Path, tmp_path: Path) -> None:
    from sentence_transformers import SparseEncoder
    from tokenizers import Tokenizer

    source = make(masked, tmp_path / "source")
    edit(source / "config_sentence_transformers.json", max_active_dims=3)
    export(str(source), tmp_path / "bundle", check=False)
    wanted = SparseEncoder(str(source), device="cpu").encode(TEXTS).to_dense().numpy()
    found = list(run(tmp_path / "bundle", TEXTS, truncate=True))
    vocabulary = Tokenizer.from_file(str(tmp_path / "bundle" / "tokenizer.json")).get_vocab()
    assert {len(each.weights or {}) for each in found} == {3} == set((wanted > 0).sum(axis=1).tolist())
    np.testing.assert_allclose(dense(found, vocabulary, wanted.shape[1]), wanted, rtol=0, atol=BOUND)
    edit(tmp_path / "bundle" / "bundle.json", max_active_dims=0)
    with pytest.raises(BundleError, match="max_active_dims"):
        list(run(tmp_path / "bundle", TEXTS))


@pytest.mark.proof
def test_weights_are_served_as_text_embeddings_inference_has_them(
    masked: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    from served import served

    export(str(make(masked, tmp_path / "source")), tmp_path / "bundle", check=False)
    wanted = {prompt: list(run(tmp_path / "bundle", TEXTS[:2], prompt_name=prompt)) for prompt in (None, "query")}
    with served(f"splade={tmp_path / 'bundle'}", f"tiny={tiny_bundle}") as server:
        for prompt, results in wanted.items():
            body = {"inputs": TEXTS[:2], "prompt_name": prompt, "truncate": False, "truncation_direction": "right"}
            status, found = server.post("/embed_sparse", body)
            assert status == 200
            for values, result in zip(found, results, strict=True):
                indices = [each["index"] for each in values]
                assert indices == sorted(indices) and len(indices) == len(result.weights or {})
                weights = sorted((each["value"] for each in values), reverse=True)
                assert weights == pytest.approx(list((result.weights or {}).values()), abs=BOUND)
        assert server.post("/embed_sparse", {"inputs": "a", "model": "splade"})[0] == 200
        for fields, param, message in (
            ({"model": "tiny"}, "model", "its task is embed, /embed_sparse needs embed-sparse"),
            ({"truncate": True}, "truncate", "truncate: true is not supported"),
            ({"normalize": True}, "normalize", "normalize"),
            ({"inputs": ["a", ""]}, "inputs", "is empty"),
        ):
            status, found = server.post("/embed_sparse", {"inputs": "a", **fields})
            assert status == 400
            assert message in found["error"]["message"] and found["error"]["param"] == param
    with served(f"tiny={tiny_bundle}") as server:
        status, found = server.post("/embed_sparse", {"inputs": "a"})
        assert status == 400 and "the server has 0 sparse encoders" in found["error"]["message"]
