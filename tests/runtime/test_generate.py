"""Generation: the tokens of `transformers`, whole and in pieces, and where a text ends."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_decoders import END, FAMILIES

from intaglio.bundle import Bundle
from intaglio.errors import BundleError, UsageError
from intaglio.exporters import export
from intaglio.runtime import decoder
from intaglio.runtime.chat import Message
from intaglio.runtime.generate import Generated, TextGenerator, generate
from intaglio.runtime.tokenizer import read_backend

PROMPTS = ["Hello there", "é", "A prompt that is longer than the others."]


@pytest.fixture
def bundle(tiny_decoder: Path) -> Path:
    return tiny_decoder


def expected_tokens(checkpoint: Path, prompt: list[int], count: int, **options: Any) -> list[int]:
    """What `transformers` writes greedily."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = torch.tensor([prompt])
    written = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0, **options
    )
    return list(written[0, len(prompt) :].tolist())


def one(bundle: Path, prompt: str, **options: Any) -> Generated:
    (result,) = generate(bundle, prompt, **options)
    return result


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(
    family: str, make_decoder: Callable[..., tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, bundle = make_decoder(family)
    monkeypatch.setattr(decoder, "PREFILL_TOKENS", 16)  # the longest prompt is read in three pieces
    monkeypatch.setattr(decoder, "CAPACITY_STEP", 8)  # and the cache grows while writing
    tokenizer = read_backend(Bundle.open(bundle))
    for prompt, result in zip(PROMPTS, generate(bundle, PROMPTS, max_new_tokens=20), strict=True):
        tokens = tokenizer.encode(prompt).ids
        assert result.tokens == expected_tokens(checkpoint, tokens, 20)
        assert result.text == tokenizer.decode(result.tokens)
        assert (result.prompt_tokens, result.strategy) == (len(tokens), "greedy")
        assert (result.calls.small, result.calls.large) == (0, len(result.tokens))


@pytest.mark.parametrize("size", ["small", "large"])
def test_trained_models_write_what_transformers_writes(size: str, language_models: Path, tmp_path: Path) -> None:
    export(str(language_models / size), tmp_path / size, check=False)
    tokenizer = read_backend(Bundle.open(tmp_path / size))
    held_out = (language_models / "held_out.txt").read_text(encoding="utf-8")
    prompts = [held_out[start : start + length] for start, length in ((0, 200), (5000, 20), (9000, 500))]
    for prompt, result in zip(prompts, generate(tmp_path / size, prompts, max_new_tokens=60), strict=True):
        assert result.tokens == expected_tokens(language_models / size, tokenizer.encode(prompt).ids, 60)


def test_a_repetition_penalty_is_that_of_transformers(make_decoder: Callable[..., tuple[Path, Path]]) -> None:
    checkpoint, bundle = make_decoder("gpt2")
    prompt = read_backend(Bundle.open(bundle)).encode("Hello").ids
    expected = expected_tokens(checkpoint, prompt, 20, repetition_penalty=1.7)
    assert one(bundle, "Hello", max_new_tokens=20, repetition_penalty=1.7).tokens == expected


def test_pieces_add_up_to_the_text(bundle: Path) -> None:
    with TextGenerator(bundle, max_new_tokens=30) as generator:
        run = generator.write("Hello")
        pieces = list(run)
    assert all(pieces)
    assert "".join(pieces) == run.result().text == run.result().text == one(bundle, "Hello", max_new_tokens=30).text


def test_a_seed_gives_the_same_texts_and_each_prompt_its_own(bundle: Path) -> None:
    options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 1.0, "seed": 3}
    first, again = ([result.tokens for result in generate(bundle, ["a", "a"], **options)] for _ in range(2))
    assert first == again
    assert first[0] != first[1]
    assert [result.tokens for result in generate(bundle, ["a"], **options)] == first[:1]
    other = options | {"seed": 4}
    assert one(bundle, "a", **other).tokens != first[0]


def test_a_text_does_not_depend_on_the_one_before(bundle: Path) -> None:
    (_, second) = generate(bundle, ["Some long prompt before it", "a"], max_new_tokens=10)
    assert second.tokens == one(bundle, "a", max_new_tokens=10).tokens


def test_the_end_token_ends_a_text_and_is_not_in_it(make_decoder: Callable[..., tuple[Path, Path]]) -> None:
    free = one(make_decoder("gpt2")[1], "Hello", max_new_tokens=30)
    end = free.tokens[10]
    place = free.tokens.index(end)
    checkpoint, bundle = make_decoder("gpt2", eos_token_id=[END, end])
    result = one(bundle, "Hello", max_new_tokens=30)
    assert (result.tokens, result.stopped) == (free.tokens[: place + 1], "eos")
    tokenizer = read_backend(Bundle.open(bundle))
    assert result.tokens == expected_tokens(checkpoint, tokenizer.encode("Hello").ids, 30)
    ignoring = one(bundle, "Hello", max_new_tokens=30, ignore_eos=True)
    assert (ignoring.tokens, ignoring.stopped) == (free.tokens, "length")


def test_a_stop_string_ends_a_text(bundle: Path) -> None:
    free = one(bundle, "Hello", max_new_tokens=40).text
    stop = next(found.group() for found in re.finditer(r"[ -~]{1,2}", free) if found.start() > 0)
    result = one(bundle, "Hello", max_new_tokens=40, stop=["never there", stop])
    assert (result.text, result.stopped) == (free[: free.index(stop)], "stop")


def test_a_text_ends_where_the_models_positions_do(bundle: Path) -> None:
    result = one(bundle, "x" * 60, max_new_tokens=10, ignore_eos=True)
    assert (len(result.tokens), result.stopped) == (4, "capacity")


def test_a_text_that_is_broken_off_keeps_what_was_written(bundle: Path) -> None:
    whole = one(bundle, "Hello", max_new_tokens=20)
    with TextGenerator(bundle, max_new_tokens=20) as generator:
        run = generator.write("Hello")
        for _ in run:
            break
        result = run.result()
    assert result.stopped == "interrupted"
    assert 0 < len(result.tokens) < 20
    assert result.tokens == whole.tokens[: len(result.tokens)]


def test_a_conversation_is_answered_after_its_template(bundle: Path) -> None:
    talk = [Message("system", "Short."), Message("user", "Why?")]
    answered, plain = generate(bundle, [talk, "<system>Short.<user>Why?>"], max_new_tokens=10)
    assert answered.tokens == plain.tokens


@pytest.mark.parametrize(
    ("prompt", "options", "said"),
    [
        ("", {}, "the prompt is empty"),
        ("x" * 64, {}, "prompt of 64 tokens: the model takes at most 64 together"),
        ("\udcff", {}, "not Unicode"),
        ("a", {"max_new_tokens": 0}, "max new tokens 0"),
        ("a", {"seed": -1}, "seed -1"),
        ("a", {"stop": [""]}, "stop string is empty"),
        ("a", {"strategy": "guess"}, "strategy 'guess': expected one of greedy, sample"),
        ("a", {"strategy": "greedy", "top_k": 3}, "leave out --top-k"),
        ("a", {"draft": "small"}, "takes no --draft"),
        ("a", {"top_p": 2.0}, "top-p 2.0"),
    ],
)
def test_what_makes_no_sense_is_refused(prompt: str, options: dict[str, Any], said: str, bundle: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        one(bundle, prompt, **options)


def test_an_encoder_writes_no_text(make_encoder: Callable[..., Path]) -> None:
    with pytest.raises(BundleError, match="its task is 'unknown', not 'generate'"):
        one(make_encoder(), "Hello")
