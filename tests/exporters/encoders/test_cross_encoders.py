"""Folders of sentence-transformers' CrossEncoder: scores equal the library, or what is not supported is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cross_encoder_folders import STRUCTURED, TEMPLATE, save_backbone, save_reranker
from sentence_folders import edit, read, write

from intaglio.bundle.bundle import Bundle
from intaglio.errors import SourceError, UsageError
from intaglio.exporters import export
from intaglio.exporters.encoders.pair_template import PairTemplates
from intaglio.graph_passes import compress
from intaglio.runtime import open_engine, run
from intaglio.runtime.text.tokenizer import Pair, Tokenizer
from intaglio.validation import validate

Run = Callable[..., tuple[int, str, str]]
BOUND = 1e-5  # absolute error of a score
PROMPTS = {"web": "Find it", "none": ""}
PAIRS = [
    Pair("who", "me"),
    Pair("who wrote it", "she did, <|im_end|> and \n more "),
    Pair(" spaces ", "d " * 900),  # beyond the limit, where the template's end replaces the last tokens
    Pair("q" * 600, "none of it is left"),
    Pair("\u00e9\u4e16", "yes"),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a decoder that answers yes or no."""
    folder = tmp_path_factory.mktemp("reranker")
    backbone = save_backbone(folder / "backbone", "qwen3", num_hidden_layers=1)
    return save_reranker(backbone, folder / "source", prompts=PROMPTS, default_prompt_name="web")


@pytest.fixture(scope="module")
def bundle(source: Path) -> Path:
    export(str(source), source.parent / "bundle")
    return source.parent / "bundle"


def library_scores(source: Path, **options: Any) -> Any:
    from sentence_transformers import CrossEncoder

    return CrossEncoder(str(source), device="cpu").predict([tuple(pair) for pair in PAIRS], **options)


def our_scores(bundle: Path, **options: Any) -> Any:
    return np.array([list((each.scores or {}).values()) for each in run(bundle, PAIRS, truncate=True, **options)])


def check_scores(source: Path, bundle: Path, **options: Any) -> None:
    wanted = library_scores(source, **options)
    found = our_scores(bundle, **options)
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=0, atol=BOUND)
    assert np.ptp(wanted) > 100 * BOUND  # the pairs are told apart


@pytest.mark.parametrize("prompt", [None, *PROMPTS])
def test_scores_of_a_decoder_equal_the_library(source: Path, bundle: Path, prompt: str | None) -> None:
    check_scores(source, bundle, prompt_name=prompt)


def test_graph_holds_the_head_of_the_answers_alone(bundle: Path) -> None:
    import onnx

    manifest = Bundle.open(bundle).manifest
    assert (manifest.task, manifest.labels, manifest.activation) == ("classify", ["LABEL_0"], "sigmoid")
    assert [(spec.name, spec.shape) for spec in manifest.outputs] == [("logits", ("batch", 1))]
    weights = onnx.load(bundle / "model.onnx", load_external_data=False).graph.initializer
    assert sum(272 in weight.dims for weight in weights) == 1  # the embeddings
    assert "1_LogitScore/config.json" in manifest.source.sha256


def test_padding_on_either_side_changes_nothing(bundle: Path) -> None:
    tokenizer = Tokenizer.open(Bundle.open(bundle))
    alone = [tokenizer.feeds([pair], truncate=True) for pair in PAIRS[:2]]
    width = max(feeds["input_ids"].shape[1] for feeds in alone) + 3
    with open_engine(bundle) as engine:
        wanted = np.concatenate([engine.run(feeds)["logits"] for feeds in alone])
        for side in ("left", "right"):
            padded = {
                name: np.concatenate(
                    [
                        np.pad(
                            feeds[name],
                            ((0, 0), (width - feeds[name].shape[1], 0)[:: 1 if side == "left" else -1]),
                            constant_values=256 if name == "input_ids" else 0,
                        )
                        for feeds in alone
                    ]
                )
                for name in alone[0]
            }
            np.testing.assert_allclose(engine.run(padded)["logits"], wanted, rtol=0, atol=BOUND)


def test_one_text_alone_and_a_long_pair_are_refused(bundle: Path, intaglio: Run) -> None:
    code, _, error = intaglio("run", str(bundle), "a text")
    assert code == 2 and "scores a query and a text together, and got one text: 'a text'" in error
    with pytest.raises(UsageError, match=r"pair of \d+ tokens, the model takes at most 500"):
        list(run(bundle, PAIRS[2:3]))


def test_file_of_queries_is_run_and_compressed_weights_are_validated(
    bundle: Path, tmp_path: Path, intaglio: Run
) -> None:
    file = tmp_path / "queries.jsonl"
    lines = [{"query": "who", "documents": ["me", "you", "they did it"]}, {"query": "what", "documents": ["that"]}]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    code, printed, _ = intaglio("run", str(bundle), "--input", str(file), "--json")
    found = [json.loads(line) for line in printed.splitlines()]
    assert code == 0 and [each["query"] for each in found] == ["who"] * 3 + ["what"]
    (alone,) = run(bundle, ["you"], query="who")
    assert found[1]["scores"] == pytest.approx(alone.scores, abs=BOUND)
    code, printed, _ = intaglio("run", str(bundle), "--query", "who", "me", "you")
    scores = [float(line.split()[0]) for line in printed.splitlines()]
    assert code == 0 and scores == sorted(scores, reverse=True)
    compress(bundle, tmp_path / "small", recipe="int8-weights")
    compared = validate(tmp_path / "small", against=bundle, data=file)
    assert {each.name for each in compared.measures} == {"score_error", "rank_correlation"}
    file = tmp_path / "sentences.txt"
    file.write_text("a sentence\n")
    with pytest.raises(UsageError, match="scores a query and a text together"):
        validate(tmp_path / "small", against=bundle, data=file)


CASES: dict[str, dict[str, Any]] = {
    "one answer, another function": {"answers": 1, "activation": "Identity"},
    "tied weights": {"backbone": {"tie_word_embeddings": True}},
    "capped logits": {"model_type": "gemma2", "backbone": {"final_logit_softcapping": 3.0}},
    "scaled logits, traced": {"model_type": "granite"},
    "a pair of texts, no template": {"template": None},
    "parts, the document first": {
        "template": STRUCTURED,
        "processing_kwargs": {"chat_template": {"add_generation_prompt": True, "sign": "Answer"}},
    },
    "no answer begins": {"template": STRUCTURED},
    "limited by the call, truncated on the left": {"processing_kwargs": {"text": {"max_length": 150}}, "left": True},
}


@pytest.mark.proof
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_other_settings_equal_the_library(case: dict[str, Any], tmp_path: Path) -> None:
    from torch import nn

    template = case.get("template", TEMPLATE)
    backbone = save_backbone(
        tmp_path / "backbone", case.get("model_type", "qwen3"), template, **case.get("backbone", {})
    )
    options = {key: value for key, value in case.items() if key in ("answers", "processing_kwargs")}
    if name := case.get("activation"):
        options["activation_fn"] = getattr(nn, name)()
    source = save_reranker(backbone, tmp_path / "source", prompts=PROMPTS, **options)
    if case.get("left"):
        edit(source / "tokenizer_config.json", truncation_side="left")
    assert export(str(source), tmp_path / "bundle").passed
    assert (Bundle.open(tmp_path / "bundle").manifest.pair is None) == (template is None)
    for prompt in (None, "web"):
        check_scores(source, tmp_path / "bundle", prompt_name=prompt)


@pytest.mark.proof
@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_decoder_with_classes_equals_the_library(template: str | None, classes: int, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    head = {"head": "SequenceClassification", "num_labels": classes}
    backbone = save_backbone(tmp_path / "backbone", "qwen2", template, **head)
    model = CrossEncoder(str(backbone), device="cpu", prompts=PROMPTS, max_length=300)
    model.save_pretrained(str(tmp_path / "source"), create_model_card=False)
    assert export(str(tmp_path / "source"), tmp_path / "bundle").passed
    for prompt in (None, "web"):
        wanted = library_scores(tmp_path / "source", prompt_name=prompt)
        names = Bundle.open(tmp_path / "bundle").manifest.labels
        results = list(run(tmp_path / "bundle", PAIRS, truncate=True, prompt_name=prompt))
        found = np.array([[(each.scores or {})[name] for name in names] for each in results]).reshape(wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=BOUND)


@pytest.mark.proof
def test_encoder_that_the_library_saved_keeps_its_prompt(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    folder = make_checkpoint("BertForSequenceClassification", num_hidden_layers=1, num_labels=1)
    model = CrossEncoder(str(folder), device="cpu", prompts=PROMPTS, default_prompt_name="web")
    model.save_pretrained(str(tmp_path / "source"), create_model_card=False)
    export(str(tmp_path / "source"), tmp_path / "bundle", check=False)
    for prompt in (None, "none"):
        wanted = library_scores(tmp_path / "source", prompt_name=prompt)
        found = our_scores(tmp_path / "bundle", prompt_name=prompt)
        np.testing.assert_allclose(found[:, 0], wanted, rtol=0, atol=BOUND)


SETTINGS, SCORE = "sentence_bert_config.json", "1_LogitScore/config.json"
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another input of the score": (SCORE, {"module_input_name": "token_embeddings"}, "module_input_name"),
    "an unknown setting of the score": (SCORE, {"temperature": 2}, "the setting 'temperature' is not supported"),
    "no token": (SCORE, {"true_token_id": None}, "true_token_id is None"),
    "a token beyond the vocabulary": (SCORE, {"false_token_id": 272}, "token 272, expected 0 to 271"),
    "another function": ("config_sentence_transformers.json", {"activation_fn": "torch.nn.Tanh"}, "activation_fn"),
    "another task": (SETTINGS, {"transformer_task": "any-to-any"}, "transformer_task 'any-to-any'"),
    "no task": (SETTINGS, {"transformer_task": None}, "transformer_task 'None' is not supported, expected 'text-gen"),
    "images": (SETTINGS, {"modality_config": {"image": {}}}, "modality_config"),
    "an end that is cut off": (SETTINGS, {"processing_kwargs": {"chat_template": {"restore_suffix": False}}}, "suffix"),
    "another template": (SETTINGS, {"processing_kwargs": {"chat_template": {"chat_template": "x"}}}, "chat_template"),
    "all logits": (SETTINGS, {"processing_kwargs": {"text": {"logits_to_keep": 0}}}, "processing_kwargs"),
    "another class": ("config.json", {"architectures": ["Qwen3Model"]}, "architecture Qwen3Model, expected Qwen3ForC"),
}


@pytest.mark.parametrize(("file", "changes", "message"), REFUSED.values(), ids=REFUSED)
def test_unsupported_setting_is_refused_by_name(
    file: str, changes: dict[str, Any], message: str, source: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "source"
    shutil.copytree(source, copy)
    edit(copy / file, **changes)
    with pytest.raises(SourceError) as refused:
        export(str(copy), tmp_path / "bundle")
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_other_modules_of_a_cross_encoder_are_refused(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "source"
    shutil.copytree(source, copy)
    more = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
    write(copy / "modules.json", [*read(copy / "modules.json"), more])
    with pytest.raises(SourceError, match="expected nothing, or LogitScore alone, after the Transformer"):
        export(str(copy), tmp_path / "bundle")


TEMPLATES = {
    "{% for m in messages %}{{ m.content | trim }}{% endfor %}": "each text unchanged, and it changes ' spaces",
    "{% for m in messages %}{{ m.role }}{% endfor %}": "expected the texts of the roles query and document once each",
    "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}": "once each",
    "{{ raise_exception('no such role') }}": "it fails",
    "{% for m in messages %}{{ m.content[:500] }}{% endfor %}": "and it changes 'AAAA",
    "{{ messages[0].content }}{{ strftime_now('%Y') }}{{ messages[1].content }}": "writes the time",
}


@pytest.mark.parametrize(("template", "message"), TEMPLATES.items())
def test_template_that_changes_texts_is_refused(template: str, message: str) -> None:
    class WithTemplate:
        chat_template, special_tokens_map = template, {}

    with pytest.raises(SourceError, match=message):
        PairTemplates(WithTemplate(), False, {}, "folder").of("")


@pytest.mark.proof
def test_decoder_is_served_as_a_reranker(bundle: Path) -> None:
    from served import served

    documents = ["me", "you or they", "nobody"]
    scores = [each.relevance or 0.0 for each in run(bundle, documents, query="who")]
    with served(f"best={bundle}") as server:
        status, found = server.post("/v1/rerank", {"model": "best", "query": "who", "documents": documents})
        assert status == 200
        for each, index in zip(found["results"], sorted(range(3), key=lambda index: -scores[index]), strict=True):
            assert each == {"index": index, "relevance_score": pytest.approx(scores[index], abs=BOUND)}
        status, found = server.post("/v1/classify", {"model": "best", "input": ["a text"]})
        assert status == 400 and "scores a query and a text together" in found["error"]["message"]
