"""Spans and answers equal those of the pipelines of transformers, windows of long texts included."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table_models import TOKENIZER, random_tables, table_bundle, table_model
from tiny_encoders import NEXT, save_encoder

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError, UsageError
from intaglio.exporters import export
from intaglio.runtime import run
from intaglio.runtime.text.tasks import AnswerSpan, Span
from intaglio.serve.opening import open_models
from intaglio.serve.options import ServerOptions

BOUND = 2e-5  # absolute error of a score
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TEXTS = ["Ada, of 12 (or so)", "a", "", "an abc; of x-y's: zü é 世 words", "[CLS] one two [SEP] three"]
QUESTION = "Who is it, a?"


@dataclass(frozen=True)
class Model:
    """A model of transformers, the folder of its tokenizer, and its bundle."""

    source: Any
    folder: Path
    bundle: Path

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of transformers."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder)


@pytest.fixture(scope="module")
def tags(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Classes of tokens."""
    folder, tables = tmp_path_factory.mktemp("tags"), random_tables(0, logits=5)
    bundle = table_bundle(folder, "token-classification", tables, LABELS)
    return Model(table_model(tables, LABELS), folder, bundle)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Answers to questions."""
    folder, tables = tmp_path_factory.mktemp("answers"), random_tables(1, start_logits=0, end_logits=0)
    return Model(table_model(tables, []), folder, table_bundle(folder, "question-answering", tables, []))


def words(seed: int, count: int) -> str:
    """Random words of letters and punctuation."""
    pick = random.Random(seed)
    return " ".join("".join(pick.choices("abcdefxyz.,'", k=pick.randint(1, 6))) for _ in range(count))


def pipeline_spans(model: Model, texts: list[str], **options: Any) -> list[list[dict[str, Any]]]:
    """The spans of the library."""
    from transformers import TokenClassificationPipeline

    pipe = TokenClassificationPipeline(model=model.source, tokenizer=model.tokenizer)
    return [pipe(text, **options) for text in texts]


def assert_same_spans(found: list[Span] | None, wanted: list[dict[str, Any]], context: object) -> None:
    assert found is not None
    assert [(each.label, each.word, each.start, each.end) for each in found] == [
        (each.get("entity_group", each.get("entity")), each["word"], each["start"], each["end"]) for each in wanted
    ], context
    assert [each.score for each in found] == pytest.approx([float(each["score"]) for each in wanted], abs=BOUND)
    assert [each.index for each in found] == [each.get("index") for each in wanted]


@pytest.mark.parametrize("how", ["none", "simple", "first", "average", "max"])
def test_spans_equal_the_pipeline(how: str, tags: Model) -> None:
    texts = [*TEXTS, *(words(seed, 9) for seed in range(4))]
    wanted = pipeline_spans(tags, texts, aggregation_strategy=how)
    found = list(run(tags.bundle, texts, aggregation=how, batch_size=4))
    assert sum(map(len, wanted)) > 10
    for text, each, expected in zip(texts, found, wanted, strict=True):
        assert_same_spans(each.spans, expected, (how, text))


@pytest.mark.parametrize(("how", "stride"), [("simple", 0), ("first", 7), ("max", 20)])
def test_windows_of_a_long_text_equal_the_pipeline(how: str, stride: int, tags: Model) -> None:
    texts = [words(seed, 60) for seed in range(3)] + ["short"]
    wanted = pipeline_spans(tags, texts, aggregation_strategy=how, stride=stride)
    for text, each, expected in zip(
        texts, run(tags.bundle, texts, aggregation=how, stride=stride), wanted, strict=True
    ):
        assert_same_spans(each.spans, expected, (how, stride, text))


def test_long_text_without_a_stride_is_an_error_or_truncated(tags: Model) -> None:
    with pytest.raises(UsageError, match="the model takes at most 96"):
        list(run(tags.bundle, [words(0, 60)]))
    (found,) = run(tags.bundle, [words(0, 60)], truncate=True)
    (wanted,) = pipeline_spans(tags, [words(0, 60)], aggregation_strategy="simple")  # which truncates
    assert_same_spans(found.spans, wanted, "truncated")


CASES: list[dict[str, Any]] = [{}, {"no_answer": True}, {"stride": 11, "top": 3}, {"max_answer_tokens": 3, "top": 1}]
NAMES = {"top": "top_k", "no_answer": "handle_impossible_answer", "stride": "doc_stride"} | {
    "max_answer_tokens": "max_answer_len"
}


@pytest.mark.proof
def test_answers_equal_the_pipeline(answers: Model, tmp_path: Path) -> None:
    """Of transformers 4, which has it: `INTAGLIO_TRANSFORMERS_4` names the folder that pip installed it to."""
    site = os.environ.get("INTAGLIO_TRANSFORMERS_4")
    if not site:
        pytest.skip("transformers 5 has no question-answering pipeline; INTAGLIO_TRANSFORMERS_4 names a folder with 4")
    contexts = ["Ada, of 12 (or so) lives in a zoo", *(words(seed, count) for seed in range(25) for count in (12, 90))]
    asked = [(context, {"top": 5, **options}) for context in contexts for options in CASES]
    calls = [
        {"question": QUESTION, "context": context} | {NAMES[key]: value for key, value in options.items()}
        for context, options in asked
    ]
    np.savez(tmp_path / "tables.npz", **random_tables(1, start_logits=0, end_logits=0))
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    program = Path(__file__).parents[2] / "support" / "checkpoints" / "answers_of_4.py"
    command = [
        sys.executable,
        str(program),
        str(answers.folder),
        str(tmp_path / "tables.npz"),
        str(tmp_path / "calls.json"),
    ]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": site}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for (context, options), wanted in zip(asked, json.loads(done.stdout), strict=True):
        (found,) = run(answers.bundle, [context], query=QUESTION, **options)
        assert found.answers is not None
        assert [(each.answer, each.start, each.end) for each in found.answers] == [
            (each["answer"], each["start"], each["end"]) for each in wanted
        ], (options, context)
        assert [each.score for each in found.answers] == pytest.approx([each["score"] for each in wanted], abs=BOUND)


def test_answers_equal_the_spans_of_every_window(answers: Model) -> None:
    """The best span of all, found by trying each pair of tokens of each window with the source model."""
    import torch

    tokenizer = answers.tokenizer
    context = words(3, 70)
    options = {"truncation": "only_second", "max_length": 96, "stride": 20, "return_overflowing_tokens": True}
    read = tokenizer(QUESTION, context, return_offsets_mapping=True, **options)
    best: dict[str, float] = {}
    for row, ids in enumerate(read["input_ids"]):
        out = answers.source(torch.tensor([ids]))
        inside = torch.tensor([number == 1 for number in read.sequence_ids(row)])
        inside[0] = True
        start, end = (
            each[0].masked_fill(~inside, -1e4).double().softmax(0) for each in (out.start_logits, out.end_logits)
        )
        tokens = [place for place in range(1, len(ids)) if inside[place]]
        pairs = [(float(start[a] * end[b]), a, b) for a in tokens for b in tokens if a <= b < a + 15]
        for score, a, b in sorted(pairs, key=lambda pair: -pair[0])[:20]:
            encoding = read[row]
            span = (
                encoding.word_to_chars(encoding.token_to_word(a), 1)[0],
                encoding.word_to_chars(encoding.token_to_word(b), 1)[1],
            )
            text = context[slice(*span)].lower()
            best[text] = best.get(text, 0.0) + score
    (found,) = run(answers.bundle, [context], query=QUESTION, stride=20, top=5)
    assert found.answers is not None
    wanted = sorted(best.items(), key=lambda item: -item[1])[:5]
    assert [each.answer.lower() for each in found.answers] == [text for text, _ in wanted]
    assert [each.score for each in found.answers] == pytest.approx([score for _, score in wanted], abs=BOUND)
    for each in found.answers:
        assert context[each.start : each.end] == each.answer


def test_no_answer_is_one_of_them(answers: Model) -> None:
    (found,) = run(answers.bundle, ["a b"], query=QUESTION, no_answer=True, top=20)
    assert found.answers is not None and AnswerSpan("", 0.0, 0, 0).answer in [each.answer for each in found.answers]


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "answers without a question": ("answers", {}, "question-answering, which needs a question: --query QUESTION"),
    "an empty question": ("answers", {"query": " "}, "--query: is empty"),
    "a question about classes": ("tags", {"query": "Who?"}, "token-classification, which reads texts alone"),
    "an aggregation of answers": (
        "answers",
        {"query": "a", "aggregation": "max"},
        "--aggregation is for bundles of the",
    ),
    "an unknown aggregation": ("tags", {"aggregation": "mean"}, "aggregation 'mean': expected one of none, simple"),
    "a stride of single tokens": (
        "tags",
        {"aggregation": "none", "stride": 4},
        "aggregation 'none' keeps single tokens",
    ),
    "a negative stride": ("tags", {"stride": -1}, "stride -1: expected at least 0"),
    "a stride as long as a window": ("tags", {"stride": 94}, "stride 94: expected less than the 94 tokens"),
    "no answer among classes": ("tags", {"no_answer": True}, "--no-answer is for bundles of the task question"),
    "no tokens of an answer": ("answers", {"query": "a", "max_answer_tokens": 0}, "max answer tokens 0: expected at"),
    "no answers": ("answers", {"query": "a", "top": 0}, "top 0: expected at least 1"),
    "a question longer than a window": ("answers", {"query": "a " * 120}, "question of 120 tokens: a window has 96"),
}


@pytest.mark.parametrize(("which", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_option_that_does_not_fit_is_refused(
    which: str, options: dict[str, Any], message: str, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(UsageError) as refused:
        list(run(request.getfixturevalue(which).bundle, ["text"], **options))
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_server_refuses_spans_by_task(tags: Model) -> None:
    with pytest.raises(BundleError, match="its task is 'token-classification', expected one of embed"):
        open_models([tags.bundle], ServerOptions())


def test_command_line_prints_tables_or_objects(
    tags: Model, answers: Model, intaglio: Callable[..., tuple[int, str, str]]
) -> None:
    code, printed, _ = intaglio("run", str(tags.bundle), TEXTS[0], "--aggregation", "first", "--json")
    spans = json.loads(printed)["spans"]
    assert code == 0 and all({"label", "score", "word", "start", "end"} == set(span) for span in spans)
    code, printed, _ = intaglio("run", str(tags.bundle), TEXTS[0])
    assert code == 0 and "class" in printed and "PER" in printed
    code, printed, _ = intaglio(
        "run", str(answers.bundle), "--query", "Who?", "Ada lives here", "--no-answer", "--top", "50"
    )
    assert code == 0 and "(none)" in printed and "Ada" in printed
    assert intaglio("run", str(tags.bundle), "a", "--no-answer")[0] == 2


@pytest.mark.proof
def test_next_sentence_reads_pairs(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForNextSentencePrediction, AutoTokenizer

    source = save_encoder(tmp_path / "checkpoint", "megatron-bert", NEXT)
    (source / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    assert export(str(source), tmp_path / "bundle").passed
    assert Bundle.open(tmp_path / "bundle").manifest.labels == ["follows", "does not follow"]
    with pytest.raises(UsageError, match="tells whether a text follows another one"):
        list(run(tmp_path / "bundle", ["a"]))
    model = AutoModelForNextSentencePrediction.from_pretrained(source).eval()
    read = AutoTokenizer.from_pretrained(source)("It rains.", "Take it.", return_tensors="pt")
    with torch.inference_mode():
        wanted = model(**read).logits.softmax(-1)[0].tolist()
    (found,) = run(tmp_path / "bundle", ["Take it."], query="It rains.")
    assert found.scores == pytest.approx(dict(zip(["follows", "does not follow"], wanted, strict=True)), abs=BOUND)
