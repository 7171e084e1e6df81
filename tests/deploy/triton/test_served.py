"""Written repositories on a real Triton server: what clients get equals `intaglio run` and `intaglio generate`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from triton_server import HERE, TritonServer, client, environment, triton_server

from intaglio.bundle.bundle import Bundle
from intaglio.deploy import deploy_triton
from intaglio.deploy.triton.serving.settings import LENGTH_STEP, DecoderSettings
from intaglio.runtime.generation.generate import TextGenerator, generate
from intaglio.runtime.generation.requests.message import Message
from intaglio.runtime.text.run_texts import run
from intaglio.runtime.text.tokenizer import Tokenizer

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[3]
TEXTS = ["A cat sits on the mat.", "Hello", "Ein längerer Satz über Häuser, Bäume und das Wetter von gestern."]
PROMPTS = ["The function returns", "If the", "import os, sys; é", "class"]
WAITING = DecoderSettings().max_waiting
CLOSE = 1e-5  # of the numbers of an embedding of length 1, which padding sums in another order


@pytest.fixture(scope="module")
def translator(make_encoder_decoder: Callable[..., tuple[Path, Path]]) -> Path:
    """A small random T5."""
    return make_encoder_decoder("t5")[1]


@pytest.fixture(scope="module")
def server(
    minilm_bundle: Path, classifier: Path, trained_pair: tuple[Path, Path], translator: Path,
    tiny_bundle: Path, tiny_decoder: Path, tiny_int8_bundle: Path, tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TritonServer]:  # fmt: skip
    environment()
    folder = tmp_path_factory.mktemp("triton")
    repository = folder / "models"
    small, large = trained_pair
    deploy_triton(
        [f"minilm={minilm_bundle}", f"mood={classifier}", f"writer={large}"], repository, rows=2, threads=1,
        draft=small, strategy="speculative",
    )  # fmt: skip
    deploy_triton([f"chat={tiny_decoder}"], folder / "chat", threads=1)
    shutil.move(folder / "chat" / "chat", repository)
    greedy, graph = folder / "greedy", folder / "graph"
    deploy_triton([f"plain={large}", f"translator={translator}"], greedy, rows=2, threads=1)
    deploy_triton([f"narrow={large}"], folder / "narrow", rows=2, threads=1, cache_bits=4)
    shutil.move(folder / "narrow" / "narrow", repository)
    for number, (encoder, decoder) in enumerate([(tiny_bundle, small), (tiny_int8_bundle, large)], 1):
        models = [f"texts={encoder}", f"story={decoder}"]
        options: dict[str, Any] = {"threads": 1, "rows": 1, "instances": 2}
        deploy_triton(models, folder / "versions", model_version=number, version_policy="latest:2", **options)
    for name in ("texts", "story"):
        shutil.move(folder / "versions" / name, repository)
    config = greedy / "plain" / "config.pbtxt"
    config.write_text(config.read_text().replace(f'"{WAITING}"', '"3"'))
    for name in ("plain", "translator"):
        shutil.move(greedy / name, repository)
    models = [f"moods={classifier}", f"small={tiny_int8_bundle}"]
    deploy_triton(models, graph, backend="onnxruntime", mounted_at=str(repository))
    for model in graph.iterdir():
        if model.name.endswith("_graph"):
            stand_in(model)
        if model.is_dir():
            shutil.move(model, repository)
    with triton_server(repository, folder) as running:
        yield running


def stand_in(model: Path) -> None:
    """Let the Python backend run a model of the backend onnxruntime, which this server does not have."""
    config = model / "config.pbtxt"
    text = config.read_text().replace('backend: "onnxruntime"', 'backend: "python"')
    config.write_text(text.replace('default_model_filename: "model.onnx"\n', ""))
    shutil.copy(HERE / "triton_graph.py", model / "1" / "model.py")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_embeddings_equal_those_of_run(server: TritonServer, minilm_bundle: Path, protocol: str) -> None:
    found = client("triton_texts.py", protocol, getattr(server, protocol), "minilm", "embedding", *TEXTS)
    expected = [result.embedding for result in run(minilm_bundle, TEXTS)]
    np.testing.assert_allclose(found, np.array(expected), atol=CLOSE)
    assert np.array(found).std(axis=0).max() > 0.01  # each text has its own


def test_concurrent_requests_share_batches(server: TritonServer) -> None:
    def counts() -> tuple[int, int]:
        with urllib.request.urlopen(f"http://{server.http}/v2/models/minilm/stats", timeout=60) as answer:
            (found,) = json.load(answer)["model_stats"]
        return found["inference_count"], found["execution_count"]

    before = counts()
    client("triton_texts.py", "grpc", server.grpc, "minilm", "embedding", *(f"Text {number}." for number in range(32)))
    texts, batches = (after - first for after, first in zip(counts(), before, strict=True))
    assert texts == 32 and batches < 16


def test_text_that_is_too_long_fails_alone(server: TritonServer, minilm_bundle: Path) -> None:
    """The others of its batch are embedded."""
    texts = [TEXTS[0], "word " * 600, TEXTS[1]]
    found = client("triton_texts.py", "grpc", server.grpc, "minilm", "embedding", *texts)
    assert "text of 602 tokens, the model takes at most 256" in found[1]["error"]
    assert "INVALID_ARGUMENT" in found[1]["error"]
    expected = [result.embedding for result in run(minilm_bundle, [texts[0], texts[2]])]
    np.testing.assert_allclose([found[0], found[2]], np.array(expected), atol=CLOSE)


def test_text_that_is_not_unicode_is_refused(server: TritonServer) -> None:
    found = client("triton_texts.py", "grpc", server.grpc, "minilm", "embedding", "a\udcff")
    assert "text_input" in found[0]["error"] and "Send UTF-8" in found[0]["error"]


def test_classes_equal_those_of_run(server: TritonServer, classifier: Path) -> None:
    expected = list(run(classifier, TEXTS))
    labels = Bundle.open(classifier).manifest.labels
    found = client("triton_texts.py", "grpc", server.grpc, "mood", "label", *TEXTS)
    assert [each[0] for each in found] == [result.label for result in expected]
    scores = client("triton_texts.py", "grpc", server.grpc, "mood", "scores", *TEXTS)
    wanted = [[(result.scores or {})[label] for label in labels] for result in expected]
    np.testing.assert_allclose(scores, wanted, atol=1e-6)


def test_tokenizer_of_an_ensemble_rounds_lengths_up(server: TritonServer, classifier: Path) -> None:
    tokenizer = Tokenizer.open(Bundle.open(classifier))
    for text in TEXTS:
        tokens = ask(server, "moods_tokenizer", {"name": "text_input", "datatype": "BYTES", "data": [text]})
        alone = tokenizer.feeds([text])
        assert tokens.keys() == alone.keys()
        length = alone["input_ids"].shape[1]
        for name, array in alone.items():
            found = np.array(tokens[name])
            assert found.shape == (1, -(-length // LENGTH_STEP) * LENGTH_STEP)
            np.testing.assert_array_equal(found[:, :length], array)


def test_ensembles_equal_run(server: TritonServer, classifier: Path, tiny_int8_bundle: Path) -> None:
    """The graph with its library of operators is in a stand-in, as this server has no backend onnxruntime."""
    found = client("triton_texts.py", "grpc", server.grpc, "small", "embedding", *TEXTS)
    expected = [result.embedding for result in run(tiny_int8_bundle, TEXTS)]
    np.testing.assert_allclose(found, np.array(expected), atol=CLOSE)
    labels = client("triton_texts.py", "grpc", server.grpc, "moods", "label", *TEXTS)
    assert [each[0] for each in labels] == [result.label for result in run(classifier, TEXTS)]
    scores = client("triton_texts.py", "grpc", server.grpc, "moods", "scores", *TEXTS)
    names = Bundle.open(classifier).manifest.labels
    wanted = [[(result.scores or {})[label] for label in names] for result in run(classifier, TEXTS)]
    np.testing.assert_allclose(scores, wanted, atol=CLOSE)


def ask(server: TritonServer, model: str, tensor: dict[str, Any]) -> dict[str, Any]:
    """Name -> nested list of the outputs for a batch of one."""
    body = {"inputs": [tensor | {"shape": [1, len(tensor["data"])]}]}
    answer = json.loads(post(server, f"{model}/infer", body))
    return {each["name"]: np.reshape(each["data"], each["shape"]).tolist() for each in answer["outputs"]}


def post(server: TritonServer, path: str, body: object) -> str:
    request = urllib.request.Request(
        f"http://{server.http}/v2/models/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.parametrize(("model", "bits"), [("plain", None), ("writer", None), ("narrow", 4)])
def test_streamed_texts_equal_those_of_generate(
    server: TritonServer, trained_pair: tuple[Path, Path], model: str, bits: int | None
) -> None:
    """`narrow` caches in 4 bits; `writer` drafts, and a greedy text is the same. There are more requests than rows."""
    requests = [{"text_input": prompt, "stream": True, "sampling_parameters": {"max_tokens": 20}} for prompt in PROMPTS]
    found = client("triton_streams.py", server.grpc, model, json.dumps(requests))
    expected = list(generate(trained_pair[1], PROMPTS, max_new_tokens=20, cache_bits=bits))
    assert ["".join(text for text, _ in pieces) for pieces in found] == [result.text for result in expected]
    assert all(len(pieces) > 5 for pieces in found)
    assert [[reason for _, reason in pieces if reason] for pieces in found] == [["length"]] * len(PROMPTS)


def test_texts_of_an_encoder_decoder_equal_those_of_generate(server: TritonServer, translator: Path) -> None:
    prompts = ["a b c", "a longer source, of more tokens"]
    requests = [{"text_input": prompt, "sampling_parameters": {"max_tokens": 8}} for prompt in prompts]
    found = client("triton_streams.py", server.grpc, "translator", json.dumps(requests))
    expected = list(generate(translator, prompts, max_new_tokens=8))
    assert [pieces[0][0] for pieces in found] == [result.text for result in expected]


def test_each_version_answers_with_its_own_model(
    server: TritonServer, tiny_bundle: Path, tiny_int8_bundle: Path, trained_pair: tuple[Path, Path]
) -> None:
    """The highest one answers where none is named."""
    text = {"name": "text_input", "datatype": "BYTES", "data": [TEXTS[0]]}
    prompt = {"text_input": PROMPTS[0], "sampling_parameters": json.dumps({"max_tokens": 12})}
    embeddings, texts = [], []
    for encoder, decoder in zip((tiny_bundle, tiny_int8_bundle), trained_pair, strict=True):
        embeddings.append(np.array([result.embedding for result in run(encoder, [TEXTS[0]])]))
        texts += [result.text for result in generate(decoder, PROMPTS[0], max_new_tokens=12)]
    assert np.abs(embeddings[0] - embeddings[1]).max() > 10 * CLOSE and texts[0] != texts[1]
    for place, version in (("/versions/1", 0), ("/versions/2", 1), ("", 1)):
        found = ask(server, f"texts{place}", text)["embedding"]
        np.testing.assert_allclose(found, embeddings[version], atol=CLOSE)
        assert json.loads(post(server, f"story{place}/generate", prompt))["text_output"] == texts[version]


def test_instances_of_an_encoder_answer_alike(server: TritonServer, tiny_int8_bundle: Path) -> None:
    """Of each of the two versions; a decoder has one instance."""
    texts = [f"Text {number}." for number in range(16)]
    found = client("triton_texts.py", "grpc", server.grpc, "texts", "embedding", *texts)
    expected = [result.embedding for result in run(tiny_int8_bundle, texts)]
    np.testing.assert_allclose(found, np.array(expected), atol=CLOSE)
    started = Counter(re.findall(r"InstanceInitialize: ((?:texts|story)\S+)", server.log.read_text()))
    assert started == {"texts_0_0": 2, "texts_0_1": 2, "story_0_0": 2}


def test_conversation_goes_through_the_chat_template(server: TritonServer, tiny_decoder: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    sampling = {"max_tokens": 6}
    requests = [
        {"messages": messages, "sampling_parameters": sampling},
        {"text_input": "hi", "sampling_parameters": sampling},
    ]
    found = client("triton_streams.py", server.grpc, "chat", json.dumps(requests))
    prompts: list[Any] = [[Message("user", "hi")], "hi"]
    expected = [result.text for result in generate(tiny_decoder, prompts, max_new_tokens=6)]
    assert [pieces[0][0] for pieces in found] == expected and expected[0] != expected[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "got no prompt, expected either text_input or messages"),
        ({"text_input": "a", "messages": []}, "got text_input and messages, expected either"),
        ({"messages": []}, "messages: contains no messages"),
        ({"messages": {"role": "user"}}, "messages: expected a JSON list of"),
    ],
)
def test_prompts_are_refused_by_name(server: TritonServer, given: dict[str, Any], message: str) -> None:
    requests = [given | {"sampling_parameters": {"max_tokens": 1}}]
    assert message in client("triton_streams.py", server.grpc, "chat", json.dumps(requests))["error"]


def test_requests_beyond_the_queue_are_refused(server: TritonServer) -> None:
    requests = [{"text_input": "a", "stream": True, "sampling_parameters": {"max_tokens": 40, "ignore_eos": True}}]
    found = client("triton_streams.py", server.grpc, "plain", json.dumps(requests * 40))
    assert "3 requests are waiting" in found["error"]


def test_sampled_text_equals_that_of_generate(server: TritonServer, trained_pair: tuple[Path, Path]) -> None:
    given = {"max_tokens": 20, "temperature": 0.9, "top_p": 0.9, "seed": 7, "stop": ["."]}
    requests = [
        {"text_input": PROMPTS[0], "sampling_parameters": given},
        {"text_input": PROMPTS[0], "stream": True, "sampling_parameters": given},
    ]
    whole, pieces = client("triton_streams.py", server.grpc, "plain", json.dumps(requests))
    options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0.9, "top_p": 0.9, "seed": 7, "stop": ["."]}
    (expected,) = generate(trained_pair[1], PROMPTS[0], **options)
    assert [text for text, _ in whole] == [expected.text]
    assert "".join(text for text, _ in pieces) == expected.text


def test_generate_endpoints_of_http(server: TritonServer, trained_pair: tuple[Path, Path]) -> None:
    body = {"text_input": PROMPTS[0], "sampling_parameters": json.dumps({"max_tokens": 6})}
    (expected,) = generate(trained_pair[1], PROMPTS[0], max_new_tokens=6)
    answer = json.loads(post(server, "plain/generate", body))
    assert (answer["text_output"], answer["finish_reason"]) == (expected.text, "length")
    lines = post(server, "plain/generate_stream", body | {"stream": True}).split("\n\n")
    pieces = [json.loads(line.removeprefix("data: "))["text_output"] for line in lines if line]
    assert len(pieces) > 2 and "".join(pieces) == expected.text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_token": 3}, "unknown field `max_token`"),
        ({"max_tokens": 0}, "max new tokens 0: expected at least 1"),
        ({"temperature": -1}, "temperature -1.0: expected 0 or more"),
        ({"stop": [""]}, "a stop string is empty"),
    ],
)
def test_sampling_parameters_are_refused_by_name(server: TritonServer, given: dict[str, Any], message: str) -> None:
    requests = [{"text_input": "a", "sampling_parameters": given}]
    found = client("triton_streams.py", server.grpc, "plain", json.dumps(requests))
    assert message in found["error"]


def test_requests_of_the_documentation_work(server: TritonServer, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "deploy" / "triton.md").read_text(encoding="utf-8")
    page = page.replace("localhost:8000", server.http).replace("localhost:8001", server.grpc)
    embed, stream = re.findall(r"^    (curl .*?)\n\n", page, re.DOTALL | re.MULTILINE)
    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "script.py").write_text(script)

    def printed(*command: str | Path) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    (found,) = json.loads(printed("bash", "-c", f"set -e; {embed}"))["outputs"]
    assert (found["name"], found["shape"]) == ("embedding", [2, 384])
    pieces = printed("bash", "-c", f"set -e; {stream}")
    assert pieces.count("data: ") > 3 and "error" not in pieces
    text = printed(environment() / "bin" / "python", tmp_path / "script.py")
    assert len(text) > 5 and "StatusCode" not in text


def test_cancelled_streams_free_their_rows(server: TritonServer, trained_pair: tuple[Path, Path]) -> None:
    """Both rows generate texts without an end; another request is served after these are cancelled."""
    with TextGenerator(trained_pair[1]) as generator:
        tokens = generator.limit - 20
    endless = {"text_input": "a", "stream": True, "sampling_parameters": {"max_tokens": tokens, "ignore_eos": True}}
    found = client("triton_cancel.py", server.grpc, "plain", json.dumps(endless))
    assert found["pieces"] >= 2
    assert found["text"], "the request after the cancelled ones was served"
    assert found["seconds"] < found["whole_seconds"] / 2


def test_server_rejects_a_damaged_configuration(minilm_bundle: Path, tmp_path: Path) -> None:
    deploy_triton([f"minilm={minilm_bundle}"], tmp_path / "models")
    path = tmp_path / "models" / "minilm" / "config.pbtxt"
    path.write_text(path.read_text().replace("dynamic_batching", "dynamic_baching"))
    with pytest.raises(AssertionError, match="dynamic_baching"), triton_server(tmp_path / "models", tmp_path):
        pass
