"""POST /v1/rerank: documents in the order of their relevance to a query, as Jina's and Cohere's APIs have it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from intaglio.bundle.text_records import TokenVectors
from intaglio.runtime.text.embedding_prompts import QUERY
from intaglio.runtime.text.tasks import Ran, scored
from intaglio.runtime.text.tokenizer import Pair
from intaglio.serve.endpoints.embeddings import MAX_INPUTS, EmbeddingUsage, usage
from intaglio.serve.responses.errors import FieldError
from intaglio.serve.workers.encoder_worker import EncoderWorker

FIELD = "documents"  # of the request, with the texts


class Document(msgspec.Struct):
    """A document with its text."""

    text: str


class RerankRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of the request; any other field is rejected by name."""

    model: str
    query: str
    documents: list[str | Document]
    top_n: int | None = None  # of the best documents to return; None: all
    return_documents: bool = False
    user: str | None = None  # accepted and not used


class RankedDocument(msgspec.Struct, omit_defaults=True):
    """A document's place in the request, and its relevance: what the model's own function makes of its number."""

    index: int
    relevance_score: float
    document: Document | None = None


class RerankResponse(msgspec.Struct):
    """The body of the response, the most relevant document first; equal ones in the order of the request."""

    results: list[RankedDocument]
    model: str
    usage: EmbeddingUsage
    object: str = "list"


async def rerank(request: RerankRequest, worker: EncoderWorker, model: str) -> RerankResponse:
    """Order the documents of `request` with `worker`; `model` is the name to answer with.

    Raises `UsageError` for a query or documents that are empty, too many or too long, and for a model that neither is a
    classifier of one class nor returns a vector for each token; and the other errors of `EncoderWorker.run`.
    """
    manifest = worker.manifest
    if manifest.vectors is None and (manifest.task != "classify" or len(manifest.labels) != 1):
        classes = f", {len(manifest.labels)} classes" if manifest.task == "classify" else ""
        message = f"model {model}: its task is {manifest.task}{classes}, /v1/rerank needs classify with one class, "
        raise FieldError(f"{message}or embed-tokens. Choose another model.", "model")
    texts = [each if isinstance(each, str) else each.text for each in request.documents]
    _check(request, texts)
    if manifest.vectors is not None:
        found, tokens = await _by_vectors(request.query, texts, worker, manifest.vectors)
    else:
        found = await worker.run([Pair(request.query, text) for text in texts], field=FIELD)
        tokens = usage(found)
    scores = []
    for result in found:
        assert result.relevance is not None, "the task scores pairs"
        scores.append(result.relevance)
    order = sorted(range(len(texts)), key=lambda index: -scores[index])[: request.top_n]
    ranked = [
        RankedDocument(index, scores[index], Document(texts[index]) if request.return_documents else None)
        for index in order
    ]
    return RerankResponse(ranked, model, tokens)


async def _by_vectors(
    query: str, texts: Sequence[str], worker: EncoderWorker, settings: TokenVectors
) -> tuple[list[Ran], EmbeddingUsage]:
    """The texts with the scores of their vectors and the query's; the query's tokens count once."""
    (read,), found = await asyncio.gather(
        worker.run([query], QUERY, "query"), worker.run(texts, worker.manifest.default_prompt, FIELD)
    )
    results = [scored(each, query, read.token_embeddings, settings.mean) for each in found]
    return results, usage([read, *found])


def _check(request: RerankRequest, texts: list[str]) -> None:
    if not request.query:
        raise FieldError("query: is empty, expected at least one character. Add the question.", "query")
    if not texts or len(texts) > MAX_INPUTS:
        message = f"documents: {len(texts)}, expected 1 to {MAX_INPUTS}. Send them in several requests."
        raise FieldError(message, "documents")
    for place, text in enumerate(texts):
        if not text:
            message = f"documents[{place}]: is empty, expected at least one character. Leave it out."
            raise FieldError(message, "documents")
    if request.top_n is not None and request.top_n < 1:
        raise FieldError(f"top_n {request.top_n}: expected at least 1. Leave it out for all.", "top_n")
