"""POST /v1/embeddings and /v1/classify: accepted and rejected inputs, and responses."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from served import Served, served
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.exporters import export
from intaglio.runtime import run
from intaglio.serve.bodies.token_ids import TokenIds
from intaglio.serve.endpoints.classification import ClassificationRequest, ClassificationResponse, classify
from intaglio.serve.endpoints.embeddings import EmbeddingsRequest, EmbeddingsResponse, create_embeddings
from intaglio.serve.models.model import EncoderModel
from intaglio.serve.opening import open_models
from intaglio.serve.options import ServerOptions
from intaglio.serve.workers.encoder_worker import EncoderWorker

LABELS = ["calm", "angry", "glad"]


@pytest.fixture(scope="module")
def embedder(tiny_bundle: Path) -> Iterator[EncoderWorker]:
    with EncoderWorker(Bundle.open(tiny_bundle), threads=1) as worker:
        yield worker


@pytest.fixture(scope="module")
def classifier(
    make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, EncoderWorker]]:
    path = tmp_path_factory.mktemp("classifier") / "bundle"
    labels = dict(enumerate(LABELS))
    folder = make_checkpoint("BertForSequenceClassification", num_hidden_layers=1, id2label=labels)
    export(str(folder), path, check=False)
    with EncoderWorker(Bundle.open(path), threads=1) as worker:
        yield path, worker


def embed(worker: EncoderWorker, **fields: Any) -> EmbeddingsResponse:
    """Send a request and read the answer, both as JSON."""
    request = msgspec.json.decode(msgspec.json.encode({"model": "tiny", **fields}), type=EmbeddingsRequest)
    answer = asyncio.run(create_embeddings(request, worker, "tiny"))
    return msgspec.json.decode(msgspec.json.encode(answer), type=EmbeddingsResponse)


def test_embeddings_are_in_order_with_token_counts(embedder: EncoderWorker, tiny_bundle: Path) -> None:
    texts = ["a b c", "long " * 9, "d"]
    answer = embed(embedder, input=texts, user="someone", dimensions=32)
    for place, (data, alone) in enumerate(zip(answer.data, run(tiny_bundle, texts, batch_size=1), strict=True)):
        assert data.index == place
        np.testing.assert_allclose(data.embedding, alone.embedding, atol=1e-5)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == (3 + 2) + (36 + 2) + (1 + 2)
    assert (answer.object, answer.model, answer.data[0].object) == ("list", "tiny", "embedding")


def test_first_dimensions_have_length_1_again(embedder: Any) -> None:
    whole, first = (embed(embedder, input="a text", **options) for options in ({}, {"dimensions": 8}))
    vector, beginning = (np.array(answer.data[0].embedding) for answer in (whole, first))
    assert beginning.shape == (8,)
    length = np.linalg.norm(vector)
    wanted = vector[:8] / np.linalg.norm(vector[:8]) if abs(length - 1) < 1e-3 else vector[:8]
    np.testing.assert_allclose(beginning, wanted, rtol=0, atol=1e-6)


def test_base64_holds_the_same_numbers(embedder: EncoderWorker) -> None:
    (numbers,) = embed(embedder, input="a b c").data
    (packed,) = embed(embedder, input="a b c", encoding_format="base64").data
    assert isinstance(packed.embedding, str)
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(packed.embedding), "<f4"), numbers.embedding)


def test_input_may_be_token_ids(embedder: EncoderWorker) -> None:
    sequences = [list(sequence.ids) for sequence in embedder._runner.tokenizer.encode(["a b", "c"])]
    both = embed(embedder, input=sequences)
    one = embed(embedder, input=sequences[0])
    text = embed(embedder, input="a b")
    assert len(both.data) == 2
    np.testing.assert_allclose(both.data[0].embedding, text.data[0].embedding, atol=1e-5)
    assert one == text


PROMPTS = {"query": {"text": "a query: ", "excluded_tokens": 0}, "document": {"text": "", "excluded_tokens": 0}}


@pytest.fixture(scope="module")
def prompted(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with two prompts, the first by default."""
    path = Path(shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("prompted") / "tiny"))
    manifest = json.loads((path / "bundle.json").read_text())
    (path / "bundle.json").write_text(json.dumps({**manifest, "prompts": PROMPTS, "default_prompt": "query"}))
    return path


def test_request_selects_the_prompt(prompted: Path, tiny_bundle: Path) -> None:
    with EncoderWorker(Bundle.open(prompted), threads=1) as worker:
        default = embed(worker, input=["b c", "d"])
        query = embed(worker, input=["b c", "d"], prompt_name="query")
        document = embed(worker, input=["b c", "d"], prompt_name="document")
    with EncoderWorker(Bundle.open(prompted), threads=1, prompt_name="document") as worker:
        assert embed(worker, input=["b c", "d"]) == document
        assert embed(worker, input=["b c", "d"], prompt_name="query") == query
    assert default == query
    assert query.usage.prompt_tokens == document.usage.prompt_tokens + 2 * len("aquery:")
    for answer, prompt in ((query, "a query: "), (document, "")):
        alone = run(tiny_bundle, [f"{prompt}b c", f"{prompt}d"])
        for data, wanted in zip(answer.data, alone, strict=True):
            np.testing.assert_allclose(data.embedding, wanted.embedding, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": "a", "prompt_name": "q"}, "prompt_name 'q': expected one of the model's prompts: query, document"),
        ({"input": [5, 6], "prompt_name": "query"}, "token ids cannot follow the prompt 'a query: '"),
        ({"input": [5, 6]}, "token ids cannot follow the prompt 'a query: '"),
    ],
)
def test_inapplicable_prompts_are_rejected(fields: dict[str, Any], message: str, prompted: Path) -> None:
    with EncoderWorker(Bundle.open(prompted), threads=1) as worker, pytest.raises(UsageError, match=message):
        embed(worker, **fields)


def test_server_option_sets_the_default_prompt(prompted: Path, tiny_decoder: Path) -> None:
    models = open_models([prompted], ServerOptions(), prompt_name="document")
    try:
        (model,) = models.by_name.values()
        assert isinstance(model, EncoderModel)
        assert embed(model.worker, input="b c") == embed(model.worker, input="b c", prompt_name="document")
    finally:
        models.close()
    for bundle, message in ((prompted, "expected one of"), (tiny_decoder, "none is given")):
        with pytest.raises(UsageError, match=message):
            open_models([bundle], ServerOptions(), prompt_name="other")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": []}, "input: an empty list"),
        ({"input": ""}, "input: is empty"),
        ({"input": ["a", ""]}, r"input\[1\]: is empty"),
        ({"input": ["a", [1]]}, "mixes texts and tokens"),
        ({"input": ["a", 1]}, "mixes texts and tokens"),
        ({"input": ["a"] * 2049}, "2049 texts, expected at most 2048"),
        ({"input": ["a", "1 " * 300]}, r"input\[1\]: text of 302 tokens"),
        ({"input": [[4, 1000]]}, "token ids 4 to 1000"),
        ({"input": "a", "dimensions": 33}, "dimensions 33: expected 1 to 32, the numbers of an embedding"),
        ({"input": "a", "dimensions": 0}, "dimensions 0: expected 1 to 32"),
    ],
)
def test_invalid_inputs_are_rejected(fields: dict[str, Any], message: str, embedder: EncoderWorker) -> None:
    with pytest.raises(UsageError, match=message):
        embed(embedder, **fields)


def foreign(ids: list[int], embedder: EncoderWorker) -> str:
    """The reason for rejected ids."""
    with pytest.raises(UsageError) as refused:
        embed(embedder, input=[ids])
    return str(refused.value)


def test_token_ids_of_another_tokenizer_are_rejected(embedder: EncoderWorker) -> None:
    (own,) = (list(sequence.ids) for sequence in embedder._runner.tokenizer.encode(["a b"]))
    assert embed(embedder, input=[own]).data
    for ids in (own[1:-1], own[1:], own[:-1], [own[0]], [20, 21, 22], own[::-1]):
        explanation = foreign(ids, embedder)
        assert f"begin with [{own[0]}] and end with [{own[-1]}]" in explanation
        assert "check_embedding_ctx_length=False" in explanation
    assert "check_embedding_ctx_length=False" in foreign([9906, 1917], embedder), "cl100k's of 'Hello world'"


def test_ids_without_special_tokens_must_match_their_text() -> None:
    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1, "ab": 2, "[UNK]": 3}, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = Whitespace()
    ids = TokenIds(tokenizer)
    ids.check([0, 1, 2, 0])
    ids.check([])
    with pytest.raises(UsageError, match="does not write"):
        ids.check([0, 3, 1])  # "[UNK]" is several words of this tokenizer


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": "a", "truncate": True}, "unknown field `truncate`"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": 3}, r"\$.input"),
        ({"input": [1.5]}, r"\$.input"),
        ({}, "missing required field `input`"),
    ],
)
def test_invalid_bodies_are_rejected_by_field_name(
    fields: dict[str, Any], message: str, embedder: EncoderWorker
) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        embed(embedder, **fields)


def test_classes_have_probabilities_in_model_order(classifier: tuple[Path, EncoderWorker]) -> None:
    path, worker = classifier
    request = ClassificationRequest("moods", ["a b c", "zzz 123 zzz"])
    encoded = msgspec.json.encode(asyncio.run(classify(request, worker, "moods")))
    answer = msgspec.json.decode(encoded, type=ClassificationResponse)
    assert answer.usage.total_tokens > 6
    for place, (data, alone) in enumerate(zip(answer.data, run(path, ["a b c", "zzz 123 zzz"]), strict=True)):
        assert (data.index, data.label, data.num_classes) == (place, alone.label, 3)
        assert data.probs == pytest.approx([(alone.scores or {})[label] for label in LABELS], abs=1e-5)
        assert sum(data.probs) == pytest.approx(1)
        assert list(data.scores) == sorted(data.scores, key=data.scores.__getitem__, reverse=True)


@pytest.fixture(scope="module")
def moods(classifier: tuple[Path, EncoderWorker]) -> Iterator[Served]:
    """A server of the classifier."""
    with served(f"moods={classifier[0]}", "--threads", 1) as running:
        yield running


def test_classify_works_over_http(moods: Served, classifier: tuple[Path, EncoderWorker]) -> None:
    texts = ["a b c", "zzz 123 zzz"]
    status, found = moods.post("/v1/classify", {"model": "moods", "input": texts})
    assert status == 200
    assert (found["object"], found["model"]) == ("list", "moods")
    for place, (data, alone) in enumerate(zip(found["data"], run(classifier[0], texts), strict=True)):
        assert (data["index"], data["label"], data["num_classes"]) == (place, alone.label, 3)
        assert data["probs"] == pytest.approx([(alone.scores or {})[label] for label in LABELS], abs=1e-5)
        assert data["scores"] == dict(zip(LABELS, data["probs"], strict=True))
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 6


@pytest.mark.parametrize(
    ("fields", "param"), [({"top_k": 1}, "top_k"), ({"input": 3}, "input"), ({"model": None}, "model")]
)
def test_unknown_field_of_classify_is_rejected_by_name(moods: Served, fields: dict[str, Any], param: str) -> None:
    status, error = moods.post("/v1/classify", {"model": "moods", "input": "a", **fields})
    assert (status, error["error"]["param"]) == (400, param)


def test_endpoints_name_the_task_they_need(classifier: tuple[Path, EncoderWorker], embedder: EncoderWorker) -> None:
    with pytest.raises(UsageError, match="task is classify, /v1/embeddings needs embed or encode"):
        embed(classifier[1], input="a")
    with pytest.raises(UsageError, match="task is embed, /v1/classify needs classify"):
        asyncio.run(classify(ClassificationRequest("tiny", "a"), embedder, "tiny"))
