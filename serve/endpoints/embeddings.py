"""POST /v1/embeddings, in OpenAI's format."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from intaglio.errors import UsageError
from intaglio.runtime.text.dimensions import check_dimensions, scaled
from intaglio.runtime.text.tasks import EMBEDDING_TASKS, Ran
from intaglio.serve.responses.errors import FieldError
from intaglio.serve.workers.encoder_worker import EncoderWorker, Text

MAX_INPUTS = 2048  # of a request, as in OpenAI's service


class EmbeddingsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of the request; any other field is rejected by name."""

    model: str
    input: str | list[str | int | list[int]]  # a text, texts, the tokens of a text, or the tokens of texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None  # the first numbers of each embedding, of length 1 again; None: all
    user: str | None = None  # accepted and not used
    prompt_name: str | None = None  # prompt of the model to put before each text; None: the server's default


class Embedding(msgspec.Struct):
    """The embedding of one input."""

    index: int
    embedding: list[float] | str  # [width]; or base64 of these numbers as little-endian float32
    object: str = "embedding"


class EmbeddingUsage(msgspec.Struct):
    """The tokens that the model read, special tokens included, without padding."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(msgspec.Struct):
    """The body of the response, in the order of the inputs."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: str = "list"


async def create_embeddings(request: EmbeddingsRequest, worker: EncoderWorker, model: str) -> EmbeddingsResponse:
    """Embed the inputs of `request` with `worker`; `model` is the name to answer with.

    Raises `UsageError` for inputs that are empty, mixed or too long, for more dimensions than the model's own, for an
    unknown prompt, and for a model that does not embed; and the other errors of `EncoderWorker.run`.
    """
    task = worker.manifest.task
    if task not in EMBEDDING_TASKS:
        expected = " or ".join(EMBEDDING_TASKS)
        message = f"model {model}: its task is {task}, /v1/embeddings needs {expected}. Choose another model."
        raise FieldError(message, "model")
    try:
        check_dimensions(worker.manifest, request.dimensions, "dimensions")
    except UsageError as error:
        raise FieldError(str(error), "dimensions") from error
    results = await worker.run(inputs(request.input), request.prompt_name)
    vectors = [scaled(_vector(result), request.dimensions) for result in results]
    encode = _base64 if request.encoding_format == "base64" else _numbers
    data = [Embedding(index, encode(vector)) for index, vector in enumerate(vectors)]
    return EmbeddingsResponse(data, model, usage(results))


def inputs(given: str | list[str | int | list[int]], field: str = "input") -> Sequence[Text]:
    """Return the texts of a request's `field`. Raises `FieldError` if there is none, or one is empty."""
    if isinstance(given, str):
        texts: list[Text] = [given]
    elif given and all(isinstance(each, int) for each in given):
        texts = [[each for each in given if isinstance(each, int)]]
    else:
        texts = [each for each in given if not isinstance(each, int)]
        if len(texts) < len(given) or len({type(each) for each in texts}) > 1:
            raise FieldError(
                f"{field}: mixes texts and tokens, expected one kind. Send them in several requests.", field
            )
    if not texts:
        raise FieldError(f"{field}: an empty list, expected at least one text. Add one.", field)
    if len(texts) > MAX_INPUTS:
        message = f"{len(texts)} texts, expected at most {MAX_INPUTS}. Send them in several requests."
        raise FieldError(f"{field}: {message}", field)
    for place, text in enumerate(texts):
        if not text:
            where = field if len(texts) == 1 else f"{field}[{place}]"
            raise FieldError(f"{where}: is empty, expected at least one character or token. Leave it out.", field)
    return texts


def usage(results: Sequence[Ran]) -> EmbeddingUsage:
    """Count the tokens of `results`."""
    tokens = sum(result.tokens for result in results)
    return EmbeddingUsage(tokens, tokens)


def _vector(result: Ran) -> npt.NDArray[np.float32]:
    assert result.embedding is not None, "the task embeds"
    return result.embedding


def _numbers(vector: npt.NDArray[np.float32]) -> list[float]:
    numbers: list[float] = vector.tolist()
    return numbers


def _base64(vector: npt.NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
