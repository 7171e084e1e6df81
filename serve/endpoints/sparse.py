"""POST /embed_sparse: weights of tokens, as text-embeddings-inference has it."""

from __future__ import annotations

from typing import Literal

import msgspec

from intaglio.serve.endpoints.embeddings import EmbeddingUsage, inputs, usage
from intaglio.serve.responses.errors import FieldError
from intaglio.serve.workers.encoder_worker import EncoderWorker

FIELD = "inputs"  # of the request, with the texts


class SparseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of the request; any other field is rejected by name."""

    inputs: str | list[str]
    model: str | None = None  # None: the server's only sparse encoder
    prompt_name: str | None = None  # prompt of the model to put before each text; None: the server's default
    truncate: bool | None = None  # only false: a longer text is an error
    truncation_direction: Literal["right", "left", "Right", "Left"] = "right"  # accepted and not used


class SparseValue(msgspec.Struct):
    """The weight of a token of the vocabulary."""

    index: int
    value: float


class SparseResponse(msgspec.Struct):
    """The weights of each input, by index, and what they cost; the body has the first alone."""

    embeddings: list[list[SparseValue]]
    usage: EmbeddingUsage


async def embed_sparse(request: SparseRequest, worker: EncoderWorker, model: str) -> SparseResponse:
    """The weights of the inputs of `request`, of the tokens that have one, with `worker`; `model` is its name.

    Raises `UsageError` for inputs that are empty or too long, and for a model that is no sparse encoder; and the other
    errors of `EncoderWorker.run`.
    """
    task = worker.manifest.task
    if task != "embed-sparse":
        message = f"model {model}: its task is {task}, /embed_sparse needs embed-sparse. Choose another model."
        raise FieldError(message, "model")
    if request.truncate:
        raise FieldError("truncate: true is not supported, expected false. Shorten the texts.", "truncate")
    given: str | list[str | int | list[int]] = request.inputs if isinstance(request.inputs, str) else [*request.inputs]
    results = await worker.run(inputs(given, FIELD), request.prompt_name, FIELD)
    found = []
    for result in results:
        assert result.weights is not None, "the task embeds sparsely"
        values = [SparseValue(worker.token_id(token), weight) for token, weight in result.weights.items()]
        found.append(sorted(values, key=lambda value: value.index))
    return SparseResponse(found, usage(results))
