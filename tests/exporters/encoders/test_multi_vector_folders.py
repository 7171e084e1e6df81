"""Folders of models with a vector for each token (ColBERT): vectors and scores equal the library's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_folders import edit, read, write

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError, SourceError, UsageError
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.runtime import run, similarity
from intaglio.runtime.text.tokenizer import Pair
from intaglio.validation import validate

Run = Callable[..., tuple[int, str, str]]
BOUND = 1e-5  # absolute error of a number of a vector, of length 1, and of a score of each token
SPECIAL = {"tokenizer_class": "BertTokenizer", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]",
           "mask_token": "[MASK]", "unk_token": "[UNK]"}  # fmt: skip
FIXED: dict[str, Any] = {"strategy": "fixed", "length": 24}
PROMPTS = {"query": "[Q] ", "document": "[D] ", "passage": "text: "}
QUERIES = ["abc", "who, what", "a longer question", "x " * 60]
DOCUMENTS = ["a", "the first, and (of all) the one", "letters " * 40, ".,;"]


@pytest.fixture(scope="module")
def backbone(make_checkpoint: Callable[..., Path]) -> Path:
    folder = make_checkpoint("BertModel", num_hidden_layers=1)
    write(folder / "tokenizer_config.json", SPECIAL)
    return folder


def make(backbone: Path, folder: Path, **options: Any) -> Path:
    """A folder of the library; `options`: of the Transformer, the mask, and the model, by their names."""
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    torch.manual_seed(0)
    mask = {key: options.pop(key) for key in ("skiplist_words", "skiplist_tasks") if key in options}
    model = {key: options.pop(key) for key in ("prompts", "similarity_fn_name") if key in options}
    transformer = Transformer(str(backbone), **options)
    dense = Dense(32, 12, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings")
    modules = [transformer, dense, MultiVectorMask(**mask), Normalize("token_embeddings")]
    made = MultiVectorEncoder(modules=modules, device="cpu", **model)
    made.save_pretrained(str(folder), create_model_card=False)
    return folder


def check(source: Path, bundle: Path) -> None:
    """Vectors of queries and documents, each alone and in a batch, and scores of pairs equal the library's."""
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(source), device="cpu")
    queries = [each.numpy() for each in model.encode_query(QUERIES)]
    documents = [each.numpy() for each in model.encode_document(DOCUMENTS)]
    for prompt, texts, wanted in (("query", QUERIES, queries), (None, DOCUMENTS, documents)):
        for size in (1, len(texts)):
            found = list(run(bundle, texts, truncate=True, prompt_name=prompt, batch_size=size))
            for ours, theirs in zip(found, wanted, strict=True):
                assert ours.token_embeddings is not None and ours.embedding is None
                np.testing.assert_allclose(ours.token_embeddings, theirs, rtol=0, atol=BOUND)
    wanted = model.similarity(queries, documents).numpy()
    pairs = [Pair(query, document) for query in QUERIES for document in DOCUMENTS]
    scores = np.array([each.relevance for each in run(bundle, pairs, truncate=True)]).reshape(wanted.shape)
    np.testing.assert_allclose(scores, wanted, rtol=1e-6, atol=BOUND * max(map(len, queries)))


@pytest.fixture(scope="module")
def source(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In the way of ColBERT: prefixes, queries of fixed length, no vectors for punctuation."""
    folder = tmp_path_factory.mktemp("colbert") / "source"
    options = {"query_expansion": FIXED, "document_length": 40, "skiplist_words": [",", ".", ";", "(", ")", "no token"]}
    return make(backbone, folder, prompts=PROMPTS, **options)


@pytest.fixture(scope="module")
def bundle(source: Path) -> Path:
    export(str(source), source.parent / "bundle", check=False)
    return source.parent / "bundle"


def test_vectors_and_scores_equal_the_library(source: Path, bundle: Path) -> None:
    check(source, bundle)
    manifest = Bundle.open(bundle).manifest
    assert manifest.task == "embed-tokens" and manifest.vectors is not None and len(manifest.vectors.skipped) == 5
    assert [(spec.name, spec.shape) for spec in manifest.outputs] == [("token_embeddings", ("batch", "sequence", 12))]


def test_another_prompt_precedes_documents(source: Path, bundle: Path) -> None:
    from sentence_transformers import MultiVectorEncoder

    wanted = MultiVectorEncoder(str(source), device="cpu").encode_document(DOCUMENTS, prompt_name="passage")
    for ours, theirs in zip(run(bundle, DOCUMENTS, truncate=True, prompt_name="passage"), wanted, strict=True):
        np.testing.assert_allclose(ours.token_embeddings, theirs.numpy(), rtol=0, atol=BOUND)


def test_command_line_prints_vectors_and_ranks_texts(bundle: Path, tmp_path: Path, intaglio: Run) -> None:
    code, printed, _ = intaglio("run", str(bundle), "a text", "--json")
    (alone,) = run(bundle, ["a text"])
    assert code == 0
    np.testing.assert_allclose(json.loads(printed)["token_embeddings"], alone.token_embeddings, atol=1e-6)
    code, printed, _ = intaglio("run", str(bundle), "a text")
    assert code == 0 and printed.startswith(f"[{len(alone.token_embeddings)} vectors of 12 numbers]  a text")
    code, printed, _ = intaglio("run", str(bundle), "--query", "abc", *DOCUMENTS[:2])
    scores = [float(line.split()[0]) for line in printed.splitlines()]
    assert code == 0 and len(scores) == 2 and scores == sorted(scores, reverse=True)
    file = tmp_path / "queries.jsonl"
    file.write_text(json.dumps({"query": "abc", "documents": DOCUMENTS[:2]}))
    code, printed, _ = intaglio("run", str(bundle), "--input", str(file), "--json")
    found = [json.loads(line) for line in printed.splitlines()]
    assert code == 0 and [list(each["scores"]) for each in found] == [["maxsim"], ["maxsim"]]
    assert "token_embeddings" not in found[0]


def test_long_texts_and_similarity_are_refused(bundle: Path) -> None:
    for text, prompt, limit in ((QUERIES[3], "query", 24), (DOCUMENTS[2], None, 40)):
        with pytest.raises(UsageError, match=rf"text of \d+ tokens, the model takes at most {limit}"):
            list(run(bundle, [text], prompt_name=prompt))
    with pytest.raises(UsageError, match="--similarity compares embeddings"):
        similarity(bundle, DOCUMENTS)


def test_compressed_weights_are_validated(bundle: Path, tmp_path: Path) -> None:
    compress(bundle, tmp_path / "small", recipe="int8-weights")
    compared = validate(tmp_path / "small", against=bundle)
    assert compared.outputs["token_embeddings"].cosine > 0.99


def test_damaged_settings_are_refused(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(bundle, copy)
    manifest = read(copy / "bundle.json")
    for changes in ({"query_length": 0}, {"expanded_to": 1 << 40}, {"expansion_token": -1}, {"skipped": [-5]}):
        write(copy / "bundle.json", manifest | {"vectors": manifest["vectors"] | changes})
        with pytest.raises(BundleError, match="Re-export the bundle"):
            list(run(copy, ["a"]))


CASES: dict[str, dict[str, Any]] = {
    "nothing set": {},
    "lengths alone": {"query_length": 20, "document_length": 30},
    "a query of at least some tokens, which are attended to": {
        "query_expansion": {"strategy": "min", "length": 16, "attend": True, "token": "a"},
        "query_length": 40,
        "prompts": PROMPTS,
    },
    "no vectors for words of queries, mean score": {
        "skiplist_words": ["a", "[SEP]", "[UNK]"],
        "skiplist_tasks": ["query", "document"],
        "similarity_fn_name": "meanmaxsim",
    },
}


@pytest.mark.proof
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_other_settings_equal_the_library(case: dict[str, Any], backbone: Path, tmp_path: Path) -> None:
    source = make(backbone, tmp_path / "source", **case)
    assert export(str(source), tmp_path / "bundle").passed
    check(source, tmp_path / "bundle")


@pytest.mark.proof
@pytest.mark.parametrize("model_type", ["modernbert", "qwen3"])
@pytest.mark.parametrize("attend", [False, True])
def test_other_encoders_equal_the_library(model_type: str, attend: bool, tmp_path: Path) -> None:
    """Traced, and a decoder, whose queries are filled up with its last token."""
    from cross_encoder_folders import save_backbone

    head = {"head": "MaskedLM", "sliding_window": 24} if model_type == "modernbert" else {}
    backbone = save_backbone(tmp_path / "backbone", model_type, None, **head)
    source = make(backbone, tmp_path / "source", prompts=PROMPTS, query_expansion=FIXED | {"attend": attend})
    assert export(str(source), tmp_path / "bundle").passed
    check(source, tmp_path / "bundle")


@pytest.mark.proof
def test_documents_are_ranked_over_http(bundle: Path) -> None:
    from served import served

    scores = [each.relevance or 0.0 for each in run(bundle, DOCUMENTS[:2], query="abc")]
    with served(f"best={bundle}") as server:
        status, found = server.post("/v1/rerank", {"model": "best", "query": "abc", "documents": DOCUMENTS[:2]})
        assert status == 200
        for each, index in zip(found["results"], sorted(range(2), key=lambda index: -scores[index]), strict=True):
            assert each == {"index": index, "relevance_score": pytest.approx(scores[index], abs=1e-4)}
        status, found = server.post("/v1/rerank", {"model": "best", "query": QUERIES[3], "documents": ["a"]})
        assert status == 400 and "the model takes at most 24" in found["error"]["message"]
        status, found = server.post("/v1/embeddings", {"model": "best", "input": "a"})
        assert status == 400 and "its task is embed-tokens" in found["error"]["message"]


OF_PYLATE: dict[str, dict[str, Any]] = {
    "tokens before texts": {
        "query_prefix": "##b ",  # a token of the vocabulary, which a text alone does not become
        "document_prefix": "##c ",
        "prompts": {"query": "##b find: ", "document": None},
        "query_length": 20,
        "document_length": 30,
        "attend_to_expansion_tokens": True,
        "skiplist_words": ["a", ","],
        "similarity_fn_name": "MaxSim",
    },
    "text before queries, not filled up": {"query_prefix": "[Q] ", "do_query_expansion": False, "query_length": 30},
    "nothing set": {},
}


@pytest.mark.proof
@pytest.mark.parametrize("settings", OF_PYLATE.values(), ids=OF_PYLATE)
def test_folder_of_pylate_equals_the_library(settings: dict[str, Any], source: Path, tmp_path: Path) -> None:
    """As its version 3 saved it: other names, and neither the mask nor the normalisation is listed."""
    copy = tmp_path / "source"
    shutil.copytree(source, copy)
    transformer, dense, *_ = read(copy / "modules.json")
    transformer["type"] = "sentence_transformers.models.Transformer"
    write(copy / "modules.json", [transformer, dense | {"type": "pylate.models.Dense.Dense"}])
    write(copy / "sentence_bert_config.json", {"max_seq_length": 40, "do_lower_case": False})
    weights = {"in_features": 32, "out_features": 12, "bias": False}
    write(copy / "1_Dense" / "config.json", weights | {"activation_function": "torch.nn.modules.linear.Identity"})
    write(copy / "config_sentence_transformers.json", {"model_type": "ColBERT", **settings})
    assert export(str(copy), tmp_path / "bundle").passed
    check(copy, tmp_path / "bundle")


SETTINGS, MASK, NORMALIZE = "sentence_bert_config.json", "2_MultiVectorMask/config.json", "3_Normalize/config.json"
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "an unknown setting": (MASK, {"pooling": 2}, "the setting 'pooling' is not supported"),
    "tokens of images": (MASK, {"keep_only_token_ids": [7]}, "keep_only_token_ids"),
    "another task": (MASK, {"skiplist_tasks": ["image"]}, "skiplist_tasks has 'image'"),
    "no list": (MASK, {"skiplist_words": 7}, "skiplist_words 7 is no list of texts"),
    "normalised sentences": (NORMALIZE, {"module_input_name": None}, "module_input_name 'None' is not supported"),
    "dense sentences": ("1_Dense/config.json", {"module_input_name": "sentence_embedding"}, "module_input_name"),
    "another strategy": (SETTINGS, {"query_expansion": FIXED | {"strategy": "most"}}, "strategy 'most'"),
    "an expansion of no length": (SETTINGS, {"query_expansion": {"strategy": "min"}}, "length is None"),
    "a long expansion": (SETTINGS, {"query_expansion": FIXED | {"length": 1000}}, "length 1000, expected at most"),
    "no token in reach": ("config.json", {"local_attention": 46}, "expected at most 23, half of the model's window"),
    "a token that is none": (SETTINGS, {"query_expansion": FIXED | {"token": "zz"}}, "token 'zz' is not in the"),
    "a token that is a number": (SETTINGS, {"query_expansion": FIXED | {"token": 7}}, "expected a bool and a text"),
    "attention that is a text": (SETTINGS, {"query_expansion": FIXED | {"attend": "no"}}, "expected a bool and a text"),
    "padding on the left": ("tokenizer_config.json", {"padding_side": "left"}, "left"),
    "another limit": (SETTINGS, {"processing_kwargs": {"text": {"max_length": 9}}}, "processing_kwargs"),
    "fewer numbers": ("config_sentence_transformers.json", {"truncate_dim": 4}, "truncate_dim is not supported"),
}


@pytest.mark.parametrize(("file", "changes", "message"), REFUSED.values(), ids=REFUSED)
def test_unsupported_setting_is_refused_by_name(
    file: str, changes: dict[str, Any], message: str, source: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "source"
    shutil.copytree(source, copy)
    edit(copy / file, **changes)
    with pytest.raises(SourceError) as refused:
        export(str(copy), tmp_path / "bundle", check=False)
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["multi_vector_encoder.modules.HierarchicalTokenPooling", "models.Pooling"])
def test_other_modules_are_refused(kind: str, source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "source"
    shutil.copytree(source, copy)
    modules = read(copy / "modules.json")
    write(copy / "modules.json", [*modules, {**modules[-1], "name": "4", "type": f"sentence_transformers.{kind}"}])
    with pytest.raises(SourceError, match=kind.rpartition(".")[2]):
        export(str(copy), tmp_path / "bundle", check=False)
    write(copy / "modules.json", [each for each in modules if "Mask" not in each["type"]])
    with pytest.raises(SourceError, match="expected one MultiVectorMask"):
        export(str(copy), tmp_path / "bundle", check=False)
