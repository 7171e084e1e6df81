"""POST /v1/classify: the classes of texts. OpenAI has no such endpoint; the answer has the fields of vLLM's."""

from __future__ import annotations

import msgspec

from intaglio.serve.endpoints.embeddings import EmbeddingUsage, inputs, usage
from intaglio.serve.responses.errors import FieldError
from intaglio.serve.workers.encoder_worker import EncoderWorker


class ClassificationRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of the request; any other field is rejected by name."""

    model: str
    input: str | list[str | int | list[int]]  # as for /v1/embeddings
    user: str | None = None  # accepted and not used


class Classification(msgspec.Struct):
    """The classes of one input. A regression model has its numbers in the place of probabilities."""

    index: int
    label: str  # the most probable class
    probs: list[float]  # [num_classes], in the model's order of classes
    num_classes: int
    scores: dict[str, float]  # the same numbers by class, the most probable first


class ClassificationResponse(msgspec.Struct):
    """The body of the response, in the order of the inputs."""

    data: list[Classification]
    model: str
    usage: EmbeddingUsage
    object: str = "list"


async def classify(request: ClassificationRequest, worker: EncoderWorker, model: str) -> ClassificationResponse:
    """Classify the inputs of `request` with `worker`; `model` is the name to answer with.

    Raises `UsageError` for inputs that are empty, mixed or too long, and for a model that does not classify; and the
    other errors of `EncoderWorker.run`.
    """
    task = worker.manifest.task
    if task != "classify":
        message = f"model {model}: its task is {task}, /v1/classify needs classify. Choose another model."
        raise FieldError(message, "model")
    results = await worker.run(inputs(request.input))
    labels = worker.manifest.labels
    data = []
    for index, result in enumerate(results):
        assert result.label is not None and result.scores is not None, "the task classifies"
        probs = [result.scores[label] for label in labels]
        data.append(Classification(index, result.label, probs, len(labels), result.scores))
    return ClassificationResponse(data, model, usage(results))
