"""An encoder-decoder behind the API: the texts of the library, constraints, and the bound of its prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from served import Served, served
from tiny_encoder_decoders import save_encoder_decoder
from tiny_translators import write_languages

from intaglio.exporters import export
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.serve.opening import SOURCE_TOKENS, open_models
from intaglio.serve.options import ServerOptions

PROMPT = "Translate: the import statement"
LIMIT = 100  # tokens of a prompt, and of a text


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random T5, whose tokens are bytes and languages."""
    folder = tmp_path_factory.mktemp("translator")
    write_languages(save_encoder_decoder(folder / "checkpoint", "t5"), {"__en__": 257, "__fr__": 258})
    export(str(folder / "checkpoint"), folder / "bundle", check=False)
    return folder / "bundle"


@pytest.fixture(scope="module")
def t5(bundle: Path) -> Iterator[Served]:
    """A server of it."""
    with served(f"t5={bundle}", "--rows", 2, "--max-sequence-tokens", LIMIT) as running:
        yield running


def complete(t5: Served, **fields: Any) -> list[str]:
    status, found = t5.post("/v1/completions", {"model": "t5", "prompt": PROMPT, "max_tokens": 30, **fields})
    assert status == 200, found
    return [choice["text"] for choice in found["choices"]]


def test_texts_equal_the_library_full_streamed_and_several(t5: Served, bundle: Path) -> None:
    with TextGenerator(bundle, max_new_tokens=30) as generator:
        expected = generator.write(PROMPT).whole().text
    assert expected
    assert complete(t5, temperature=0) == [expected]
    assert complete(t5, temperature=0, n=2) == [expected, expected]
    with openai.OpenAI(base_url=f"{t5.url}/v1", api_key="any", max_retries=0) as client:
        stream = client.completions.create(model="t5", prompt=PROMPT, max_tokens=30, temperature=0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == expected


def test_languages_come_from_the_request(t5: Served, bundle: Path) -> None:
    languages = {"source_language": "fr", "target_language": "en"}
    with TextGenerator(bundle, max_new_tokens=30, **languages) as generator:
        expected = generator.write(PROMPT).whole().text
    assert complete(t5, temperature=0, **languages) == [expected]
    assert complete(t5, temperature=0) != [expected]
    for name in languages:
        status, found = t5.post("/v1/completions", {"model": "t5", "prompt": PROMPT, name: "de"})
        assert status == 400 and found["error"]["param"] == name
        assert "language de: expected one of en, fr" in found["error"]["message"]


def test_texts_are_constrained(t5: Served) -> None:
    (text,) = complete(t5, structured_outputs={"regex": "[ab]{3,6}"})
    assert re.fullmatch("[ab]{3,6}", text)
    schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
    (text,) = complete(t5, structured_outputs={"json": {**schema, "additionalProperties": False}}, max_tokens=90)
    assert isinstance(json.loads(text)["yes"], bool)


def test_chat_is_rejected_by_model_name(t5: Served) -> None:
    body = {"model": "t5", "messages": [{"role": "user", "content": "Hello"}]}
    status, error = t5.post("/v1/chat/completions", body)
    assert status == 400
    assert error["error"]["message"] == "model 't5' has no usable chat template: use /v1/completions."


@pytest.mark.parametrize("prompt", ["x" * (LIMIT + 1), [1] * (LIMIT + 1), "x" * 100_000])
def test_prompt_beyond_the_limit_is_rejected(t5: Served, prompt: object) -> None:
    status, error = t5.post("/v1/completions", {"model": "t5", "prompt": prompt})
    assert status == 400
    assert error["error"]["type"] == "invalid_request_error"
    assert f"takes at most {LIMIT}" in error["error"]["message"]


def test_source_takes_no_positions_of_the_text(t5: Served) -> None:
    assert complete(t5, prompt=[1] * LIMIT, max_tokens=LIMIT - 1, ignore_eos=True)


@pytest.mark.parametrize(("given", "expected"), [(None, SOURCE_TOKENS), (6000, 6000)])
def test_source_length_has_a_default_limit(bundle: Path, given: int | None, expected: int) -> None:
    models = open_models([f"t5={bundle}"], ServerOptions(rows=1, max_sequence_tokens=given))
    try:
        assert models.decoder("t5").worker.scheduler.source_limit == expected
    finally:
        models.close()
