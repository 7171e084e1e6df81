"""The server through the official client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from served import Served

from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.message import Message

PROMPT = "The import statement"
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["module", "class"]},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["kind", "lines"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def generator(chat_models: tuple[Path, Path]) -> Any:
    with TextGenerator(chat_models[1], max_new_tokens=40) as opened:
        yield opened


def ask(client: openai.OpenAI, **options: Any) -> Any:
    given = {"model": "lm", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 24, "temperature": 0}
    return client.chat.completions.create(**{**given, **options})


def streamed(chunks: Any) -> dict[int, str]:
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    return texts


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert {model.id: model.max_model_len for model in client.models.list()} == {
        "lm": 240,
        "plain": 240,
        "encoder": 256,
    }
    assert client.models.retrieve("lm").owned_by == "intaglio"
    with pytest.raises(openai.NotFoundError, match=r"'other' does not exist\. This server has: lm, plain, encoder"):
        client.models.retrieve("other")


def test_greedy_texts_equal_generate(client: openai.OpenAI, generator: TextGenerator) -> None:
    expected = generator.write(PROMPT).whole()
    found = client.completions.create(model="lm", prompt=PROMPT, temperature=0, max_tokens=40)
    assert found.choices[0].text == expected.text
    assert found.usage is not None
    assert found.usage.completion_tokens == len(expected.tokens)
    answer = generator.write([Message("user", "Hello")]).whole()
    assert ask(client, max_tokens=40).choices[0].message.content == answer.text


def test_stream_equals_the_full_response(client: openai.OpenAI) -> None:
    options = {"temperature": 1.2, "seed": 5, "n": 2}
    whole = ask(client, **options)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}, **options))
    assert streamed(chunks) == {choice.index: choice.message.content for choice in whole.choices}
    assert len({choice.message.content for choice in whole.choices}) == 2
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert {choice.finish_reason for chunk in chunks for choice in chunk.choices} == {None, "length"}


def test_seeds_including_negative_ones_reproduce_texts(client: openai.OpenAI) -> None:
    texts = [ask(client, temperature=1.5, seed=seed).choices[0].message.content for seed in (-7, -7, 8)]
    assert texts[0] == texts[1] != texts[2]


def test_prompts_may_be_lists_and_token_ids(client: openai.OpenAI, generator: TextGenerator) -> None:
    ids = generator.encode(PROMPT)
    both = client.completions.create(model="lm", prompt=["A function", ids], temperature=0, max_tokens=5)  # type: ignore[list-item]
    alone = client.completions.create(model="lm", prompt=ids, temperature=0, max_tokens=5)
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.choices[1].text == alone.choices[0].text


def test_text_ends_before_a_stop_string(client: openai.OpenAI) -> None:
    text = client.completions.create(model="lm", prompt=PROMPT, temperature=0, max_tokens=24).choices[0].text
    stop = text[len(text) // 2 :][:3]
    found = client.completions.create(model="lm", prompt=PROMPT, temperature=0, max_tokens=24, stop=[stop, "\0"])
    assert found.choices[0].finish_reason == "stop"
    assert found.choices[0].text == text[: text.index(stop)]


def test_reused_prompt_counts_as_cached(client: openai.OpenAI) -> None:
    long = "A module is a file that contains definitions and statements of the language. " * 3
    ask(client, messages=[{"role": "user", "content": long + "What is it?"}])
    usage = ask(client, messages=[{"role": "user", "content": long + "What else?"}]).usage
    assert usage.prompt_tokens_details.cached_tokens > 40


def test_logprobs_equal_the_models(client: openai.OpenAI) -> None:
    found = ask(client, logprobs=True, top_logprobs=3).choices[0]
    for entry in found.logprobs.content:
        assert entry.token == entry.top_logprobs[0].token
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0
        assert bytes(entry.bytes).decode() == entry.token
    assert "".join(entry.token for entry in found.logprobs.content) == found.message.content
    chunks = list(ask(client, logprobs=True, top_logprobs=3, stream=True))
    parts = [entry for chunk in chunks for each in chunk.choices if each.logprobs for entry in each.logprobs.content]
    assert [entry.token for entry in parts] == [entry.token for entry in found.logprobs.content]


def test_partial_character_has_its_own_bytes(client: openai.OpenAI, generator: TextGenerator) -> None:
    part = generator.tokenizer.token_to_id("â")  # the byte E2, with which "€" begins
    bias = {str(part): 100}
    entry = ask(client, max_tokens=1, logprobs=True, logit_bias=bias).choices[0].logprobs.content[0]
    assert (entry.token, entry.bytes) == ("\N{REPLACEMENT CHARACTER}", [0xE2])
    found = client.completions.create(model="lm", prompt="A", max_tokens=1, logprobs=2, logit_bias=bias)
    assert found.choices[0].logprobs.tokens == ["bytes:\\xe2"]


def test_logit_bias_forbids_and_forces_tokens(client: openai.OpenAI, generator: TextGenerator) -> None:
    forced = generator.tokenizer.encode("import", add_special_tokens=False).ids[0]
    found = client.completions.create(
        model="lm", prompt="A", temperature=0, max_tokens=3, logit_bias={str(forced): 100}
    )
    assert found.choices[0].text == generator.tokenizer.decode([forced] * 3)


@pytest.mark.parametrize("stream", [False, True])
def test_answer_matches_the_schema(client: openai.OpenAI, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "found", "strict": True, "schema": SCHEMA}}
    for seed in range(4):
        found = ask(client, response_format=form, temperature=1.5, seed=seed, max_tokens=200, stream=stream)
        text = streamed(found)[0] if stream else found.choices[0].message.content
        jsonschema.validate(json.loads(text), SCHEMA)


def test_answer_is_one_of_the_choices(client: openai.OpenAI) -> None:
    found = ask(client, temperature=1.5, extra_body={"structured_outputs": {"choice": ["yes", "no.", "(maybe)"]}}, n=4)
    assert {choice.message.content for choice in found.choices} <= {"yes", "no.", "(maybe)"}
    assert {choice.finish_reason for choice in found.choices} == {"stop"}


@pytest.mark.parametrize(
    "limit",
    [
        {},
        {"extra_body": {"structured_outputs": {"regex": "(?s:.*)"}}},
        {"tools": [{"type": "function", "function": {"name": "now"}}], "tool_choice": "none"},
    ],
    ids=["free", "regular expression", "tools that may not be called"],
)
@pytest.mark.parametrize("ignored", [False, True])
def test_end_token_that_is_ignored_does_not_end_a_text(
    client: openai.OpenAI, generator: TextGenerator, limit: dict[str, Any], ignored: bool
) -> None:
    likely = {str(end): 100 for end in generator.ends}
    extra = limit.get("extra_body", {}) | {"ignore_eos": ignored}
    options = {"temperature": 0, "max_tokens": 6, "logit_bias": likely, **limit, "extra_body": extra}
    assert ask(client, **options).choices[0].finish_reason == ("length" if ignored else "stop")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"n": 100}, "n"),
        ({"stop": ""}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"max_tokens": 1 << 40}, "max_tokens"),
        ({"extra_body": {"repetition_penalty": 1e-42}}, "repetition_penalty"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"extra_body": {"unheard_of": 1}}, "unheard_of"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": []}, "messages"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "odd"}}}}, None),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_unsupported_fields_are_rejected_by_name(client: openai.OpenAI, options: Any, param: str | None) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, **options)
    assert refused.value.type == "invalid_request_error"
    assert param is None or refused.value.param == param
    assert "\n" not in refused.value.message


def test_neutral_field_values_are_accepted(client: openai.OpenAI) -> None:
    notes = {"metadata": {"a": "b"}, "prompt_cache_key": "x", "safety_identifier": "y"}
    assert ask(client, store=False, service_tier="auto", modalities=["text"], user="me", **notes).choices


def test_answer_can_be_sent_back_with_empty_fields(client: openai.OpenAI) -> None:
    message = ask(client).choices[0].message.model_dump()
    assert None in message.values()
    assert ask(client, messages=[{"role": "user", "content": "Hi"}, message, {"role": "user", "content": "Go on"}])
    greedy: dict[str, Any] = {"model": "lm", "max_output_tokens": 4, "temperature": 0}  # sampled, it could end at once
    output = [item.model_dump() for item in client.responses.create(input="Hi", **greedy).output]
    assert client.responses.create(input=[*output, {"role": "user", "content": "Go on"}], **greedy).output


def test_tiny_temperature_is_greedy(client: openai.OpenAI) -> None:
    assert ask(client, temperature=1e-46).choices[0].message.content == ask(client).choices[0].message.content


def test_too_long_prompt_is_rejected(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="the model takes at most 240"):
        ask(client, messages=[{"role": "user", "content": "word " * 500}])


def test_model_without_template_rejects_conversations(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="has no usable chat template: use /v1/completions"):
        ask(client, model="plain")
    assert client.completions.create(model="plain", prompt=PROMPT, max_tokens=2).choices


def test_endpoints_reject_models_of_other_tasks(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="it generates no text"):
        ask(client, model="encoder")
    with pytest.raises(openai.BadRequestError, match="computes no embeddings"):
        client.embeddings.create(model="lm", input="a")


def test_many_concurrent_embeddings(client: openai.OpenAI) -> None:
    assert len(client.embeddings.create(model="encoder", input=["a"] * 1000).data) == 1000


def test_empty_embedding_input_is_logged_as_client_error(server: Served) -> None:
    before = server.metric("intaglio:requests_rejected_total")
    status, error = server.post("/v1/embeddings", {"model": "encoder", "input": ""})
    assert status == 400
    assert "is empty" in error["error"]["message"]
    assert server.metric("intaglio:requests_rejected_total") == before + 1
    assert "Traceback" not in "".join(server.log)


def test_embeddings_as_numbers_and_as_base64_are_equal(client: openai.OpenAI, server: Served) -> None:
    texts = ["one", "two and three"]
    decoded = client.embeddings.create(model="encoder", input=texts)  # the client asks for base64
    status, plain = server.post("/v1/embeddings", {"model": "encoder", "input": texts})
    assert status == 200
    assert server.metric("vllm:prompt_tokens_total") > 0
    for ours, numbers in zip(decoded.data, plain["data"], strict=True):
        assert ours.embedding == pytest.approx(numbers["embedding"], abs=1e-6)
