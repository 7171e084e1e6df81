"""POST /v1/rerank: order, scores, documents, and requests that are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Served, served

from intaglio.exporters import export
from intaglio.runtime import run

QUERY = "who wrote it"
TEXTS = ["a b c", "bees and honey", "she wrote it herself", "d"]


@pytest.fixture(scope="module")
def reranker(make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_checkpoint("BertForSequenceClassification", num_hidden_layers=1, num_labels=1)
    bundle = tmp_path_factory.mktemp("reranker") / "bundle"
    export(str(folder), bundle, check=False)
    return bundle


@pytest.fixture(scope="module")
def server(reranker: Path, tiny_bundle: Path) -> Iterator[Served]:
    with served(f"best={reranker}", f"tiny={tiny_bundle}") as running:
        yield running


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_documents_are_sorted_by_the_models_scores(server: Served, reranker: Path, path: str) -> None:
    status, found = server.post(path, {"model": "best", "query": QUERY, "documents": TEXTS})
    assert status == 200
    scores = [sum((each.scores or {}).values()) for each in run(reranker, TEXTS, query=QUERY)]
    assert [each["index"] for each in found["results"]] == sorted(range(4), key=lambda index: -scores[index])
    for each in found["results"]:
        assert each == {"index": each["index"], "relevance_score": pytest.approx(scores[each["index"]], abs=1e-5)}
    tokens = sum(each.tokens for each in run(reranker, TEXTS, query=QUERY))
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens} and found["model"] == "best"


def test_best_documents_are_returned_on_request(server: Served) -> None:
    documents = [TEXTS[0], *({"text": text} for text in TEXTS[1:])]
    body = {"model": "best", "query": QUERY, "documents": documents, "top_n": 2, "return_documents": True}
    _, found = server.post("/v1/rerank", body)
    assert len(found["results"]) == 2
    assert all(each["document"] == {"text": TEXTS[each["index"]]} for each in found["results"])


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"query": ""}, "query", "query: is empty"),
        ({"documents": []}, "documents", "documents: 0, expected 1 to"),
        ({"documents": ["a", ""]}, "documents", r"documents[1]: is empty"),
        ({"documents": ["a"] * 3000}, "documents", "documents: 3000, expected 1 to"),
        ({"top_n": 0}, "top_n", "top_n 0: expected at least 1"),
        ({"model": "tiny"}, "model", "its task is embed, /v1/rerank needs classify with one class"),
        ({"rank_fields": ["title"]}, "rank_fields", "rank_fields"),
        ({"documents": ["b " * 5000]}, "documents", "documents: pair of"),
        ({"documents": ["a", "b " * 5000]}, "documents", "documents[1]: pair of"),
    ],
)
def test_invalid_request_names_its_field(server: Served, fields: dict[str, Any], param: str, message: str) -> None:
    status, found = server.post("/v1/rerank", {"model": "best", "query": QUERY, "documents": TEXTS, **fields})
    assert status == 400
    assert message in found["error"]["message"] and found["error"]["param"] == param


@pytest.mark.proof
def test_coheres_client_reads_the_response(server: Served) -> None:
    cohere = pytest.importorskip("cohere")
    with cohere.ClientV2(api_key="any", base_url=server.url) as client:
        found = client.rerank(model="best", query=QUERY, documents=TEXTS, top_n=3)
    _, wanted = server.post("/v1/rerank", {"model": "best", "query": QUERY, "documents": TEXTS, "top_n": 3})
    assert [each.index for each in found.results] == [each["index"] for each in wanted["results"]]
    scores = [each["relevance_score"] for each in wanted["results"]]
    assert [each.relevance_score for each in found.results] == pytest.approx(scores, abs=1e-6)


@pytest.mark.proof
def test_langchains_client_of_jina_reads_the_response(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("langchain_community.document_compressors.jina_rerank")
    monkeypatch.setattr(module, "JINA_API_URL", f"{server.url}/v1/rerank")
    client = module.JinaRerank(model="best", jina_api_key="any", top_n=2)
    with client.session:
        found = client.compress_documents([module.Document(text) for text in TEXTS], QUERY)
    _, wanted = server.post("/v1/rerank", {"model": "best", "query": QUERY, "documents": TEXTS, "top_n": 2})
    assert [each.page_content for each in found] == [TEXTS[each["index"]] for each in wanted["results"]]
    scores = [each["relevance_score"] for each in wanted["results"]]
    assert [each.metadata["relevance_score"] for each in found] == pytest.approx(scores, abs=1e-6)
