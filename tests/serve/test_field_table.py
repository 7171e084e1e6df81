"""Each field of each endpoint is used, returned, documented as unused, or rejected by name."""

from __future__ import annotations

import inspect
import json
from typing import Any

import msgspec
import openai.resources.chat.completions
import openai.resources.completions
import openai.resources.embeddings
import openai.resources.responses
import pytest
from served import Served

from intaglio.serve.bodies.json_body import NEUTRAL, decode
from intaglio.serve.endpoints.chat_completions import ChatRequest
from intaglio.serve.endpoints.classification import ClassificationRequest
from intaglio.serve.endpoints.completions import CompletionRequest
from intaglio.serve.endpoints.embeddings import EmbeddingsRequest
from intaglio.serve.endpoints.responses import ResponsesRequest
from intaglio.serve.endpoints.sparse import SparseRequest
from intaglio.serve.responses.errors import ApiError

GENERATION = (
    "model stream stream_options temperature top_p top_k min_p repetition_penalty presence_penalty frequency_penalty "
    "logit_bias seed n stop ignore_eos structured_outputs source_language target_language lora"
)
CONVERSATION = f"{GENERATION} parallel_tool_calls chat_template_kwargs tools tool_choice"
# The use of a field. "unused": as documented in docs/serving.md.
TABLE: dict[type[msgspec.Struct], dict[str, str]] = {
    CompletionRequest: {"used": f"{GENERATION} prompt max_tokens logprobs", "unused": "user"},
    ChatRequest: {
        "used": f"{CONVERSATION} messages max_tokens max_completion_tokens logprobs top_logprobs response_format",
        "returned": "metadata",
        "unused": "user prompt_cache_key safety_identifier",
    },
    ResponsesRequest: {
        "used": f"{CONVERSATION} input instructions max_output_tokens text",
        "returned": "metadata user prompt_cache_key safety_identifier",
    },
    EmbeddingsRequest: {"used": "model input encoding_format dimensions prompt_name", "unused": "user"},
    ClassificationRequest: {"used": "model input", "unused": "user"},
    SparseRequest: {"used": "model inputs prompt_name truncate", "unused": "truncation_direction"},
}
CLIENTS: dict[type[msgspec.Struct], Any] = {
    CompletionRequest: openai.resources.completions.Completions,
    ChatRequest: openai.resources.chat.completions.Completions,
    ResponsesRequest: openai.resources.responses.Responses,
    EmbeddingsRequest: openai.resources.embeddings.Embeddings,
}
NEEDED = {"model": "m", "prompt": "a", "messages": [{"role": "user", "content": "a"}], "input": "a", "inputs": "a"}
kinds = pytest.mark.parametrize("kind", TABLE, ids=lambda kind: kind.__name__)


def body(kind: type[msgspec.Struct], **fields: Any) -> bytes:
    known = {field.name for field in msgspec.structs.fields(kind)}
    return json.dumps({**{name: value for name, value in NEEDED.items() if name in known}, **fields}).encode()


def param(kind: type[msgspec.Struct], **fields: Any) -> str | None:
    """The field that a request is refused for."""
    with pytest.raises(ApiError) as refused:
        decode(body(kind, **fields), kind)
    assert refused.value.status == 400
    return refused.value.body.error.param


@kinds
def test_table_lists_each_field(kind: type[msgspec.Struct]) -> None:
    listed = " ".join(TABLE[kind].values()).split()
    assert sorted(listed) == sorted(field.name for field in msgspec.structs.fields(kind))


@kinds
def test_known_fields_reject_other_types_by_name(kind: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(kind):
        assert (param(kind, **{field.name: [[1.5]]}) or "").partition("[")[0] == field.name


@kinds
def test_client_fields_are_known_or_rejected_by_name(kind: type[msgspec.Struct]) -> None:
    known = {field.name for field in msgspec.structs.fields(kind)}
    client = CLIENTS.get(kind)
    offered = set(inspect.signature(client.create).parameters) if client else set()
    for name in (offered | {"odd", "metadata", "truncate", "input_type"}) - known - {"self"}:
        assert param(kind, **{name: "odd"}) == name
        for value in NEUTRAL.get(name, ()):
            decode(body(kind, **{name: value}), kind)


NOTES = {"metadata": {"trace": "7"}, "user": "me", "prompt_cache_key": "k", "safety_identifier": "s"}


@pytest.mark.parametrize("stream", [False, True])
def test_response_returns_the_clients_metadata(server: Served, stream: bool) -> None:
    sent = {"model": "lm", "input": "Hi", "max_output_tokens": 2, **NOTES}
    if stream:
        with server.connect() as connection:
            data = json.dumps({**sent, "stream": True}).encode()
            head = "POST /v1/responses HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            received = b""
            while part := connection.recv(1 << 16):
                received += part
        lines = [line for line in received.decode().splitlines() if line.startswith("data: {")]
        found = [each["response"] for line in lines if "response" in (each := json.loads(line[6:]))]
        assert len(found) == 3
    else:
        status, one = server.post("/v1/responses", sent)
        assert status == 200
        found = [one]
    for response in found:
        assert {name: response[name] for name in NOTES} == NOTES
        assert (response["truncation"], response["background"], response["store"]) == ("disabled", False, False)


def test_response_metadata_defaults_to_empty(server: Served) -> None:
    _, response = server.post("/v1/responses", {"model": "lm", "input": "Hi", "max_output_tokens": 2})
    assert [response[name] for name in NOTES] == [{}, None, None, None]


def test_chat_completion_returns_its_metadata(server: Served) -> None:
    sent = {"model": "lm", "messages": NEEDED["messages"], "max_tokens": 2}
    assert server.post("/v1/chat/completions", {**sent, "metadata": {"a": "b"}})[1]["metadata"] == {"a": "b"}
    assert "metadata" not in server.post("/v1/chat/completions", sent)[1]


@pytest.mark.parametrize("metadata", [{"a": 1}, {"a" * 65: ""}, {"a": "b" * 513}, {str(n): "" for n in range(17)}])
@pytest.mark.parametrize("kind", [ChatRequest, ResponsesRequest])
def test_metadata_beyond_its_limits_is_rejected(kind: type[msgspec.Struct], metadata: dict[str, Any]) -> None:
    assert (param(kind, metadata=metadata) or "").startswith("metadata")


LONG = "word " * 400


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        ("/v1/chat/completions", {"model": "lm", "messages": [{"role": "user", "content": LONG}]}, "messages"),
        ("/v1/completions", {"model": "lm", "prompt": LONG}, "prompt"),
        ("/v1/completions", {"model": "lm", "prompt": [1] * 500}, "prompt"),
        ("/v1/completions", {"model": "lm", "prompt": "x" * 100_000}, "prompt"),
        ("/v1/responses", {"model": "lm", "input": LONG}, "input"),
        ("/v1/embeddings", {"model": "encoder", "input": ["a", LONG]}, "input"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_too_long_prompt_has_the_apis_error_code(
    server: Served, path: str, fields: dict[str, Any], name: str, stream: bool
) -> None:
    streamed = {"stream": True} if stream and "embeddings" not in path else {}
    status, error = server.post(path, {**fields, **streamed})
    found = error["error"]
    assert (status, found["type"], found["code"]) == (400, "invalid_request_error", "context_length_exceeded")
    assert found["param"] == name
    assert "--" not in found["message"]
