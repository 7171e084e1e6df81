"""The input `sampling_parameters`: the request that it becomes, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from intaglio.deploy.triton.serving.sampling_parameters import generation_request
from intaglio.errors import UsageError
from intaglio.runtime.generation.generate import TextGenerator


@pytest.fixture(scope="module")
def generator(tiny_decoder: Path) -> Iterator[TextGenerator]:
    with TextGenerator(tiny_decoder) as opened:
        yield opened


def test_defaults_equal_those_in_generate(generator: TextGenerator) -> None:
    request = generation_request(generator, "a", None)
    assert request.sampling.greedy and request.max_new_tokens == 256 and request.seed is None
    assert request.end_tokens == generator.ends


def test_fields_have_the_names_of_vllm(generator: TextGenerator) -> None:
    given = '{"max_tokens": 3, "top_k": 5, "seed": 2, "stop": "x", "ignore_eos": true, "presence_penalty": 1}'
    request = generation_request(generator, "a", given)
    assert (request.max_new_tokens, request.seed, request.stop, request.end_tokens) == (3, (2, 0), ["x"], frozenset())
    sampling = request.sampling
    assert (sampling.top_k, sampling.temperature, sampling.presence_penalty) == (5, 1.0, 1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[1]", "Expected `object`, got `array`"),
        ("{", "Input data was truncated"),
        ('{"n": 2}', "unknown field `n`. Expected a JSON object with some of max_tokens, temperature"),
        ('{"max_tokens": "3"}', "Expected `int`, got `str`"),
        ('{"top_p": 2}', "top-p 2.0: expected 0 to 1"),
    ],
)
def test_refusals(generator: TextGenerator, given: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        generation_request(generator, "a", given)
    assert message in str(raised.value)
