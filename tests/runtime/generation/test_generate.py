"""Generation: the tokens of `transformers`, complete and streamed, and stopping."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from covering import few
from drafts import save_drafts
from tiny_decoders import END, FAMILIES

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError, IntaglioError, UsageError
from intaglio.exporters import export
from intaglio.runtime.generation.generate import TextGenerator, generate
from intaglio.runtime.generation.requests.message import Message
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.sessions import decoder, key_value_cache, limits
from intaglio.runtime.text.tokenizer import read_backend

PROMPTS = ["Hello there", "é", "A prompt that is longer than the others."]


@pytest.fixture
def bundle(tiny_decoder: Path) -> Path:
    return tiny_decoder


def expected_tokens(checkpoint: Path, prompt: list[int], count: int, **options: Any) -> list[int]:
    """The greedy text of `transformers`."""
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


@pytest.mark.parametrize("family", few(FAMILIES, ["gpt2", "qwen3"]))
def test_greedy_tokens_equal_transformers(
    family: str, make_decoder: Callable[..., tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, bundle = make_decoder(family)
    monkeypatch.setattr(limits, "PREFILL_TOKENS", 16)  # the longest prompt is prefilled in three chunks
    monkeypatch.setattr(key_value_cache, "CAPACITY_STEP", 8)  # and the cache grows during decoding
    tokenizer = read_backend(Bundle.open(bundle))
    for prompt, result in zip(PROMPTS, generate(bundle, PROMPTS, max_new_tokens=20), strict=True):
        tokens = tokenizer.encode(prompt).ids
        assert result.tokens == expected_tokens(checkpoint, tokens, 20)
        assert result.text == tokenizer.decode(result.tokens)
        assert (result.prompt_tokens, result.strategy) == (len(tokens), "greedy")
        assert (result.calls.small, result.calls.large) == (0, len(result.tokens))


@pytest.mark.parametrize("size", ["small", "large"])
def test_trained_models_match_transformers(size: str, language_models: Path, trained_pair: tuple[Path, Path]) -> None:
    bundle = trained_pair[size == "large"]
    tokenizer = read_backend(Bundle.open(bundle))
    held_out = (language_models / "held_out.txt").read_text(encoding="utf-8")
    prompts = [held_out[start : start + length] for start, length in ((0, 200), (5000, 20), (9000, 500))]
    for prompt, result in zip(prompts, generate(bundle, prompts, max_new_tokens=60), strict=True):
        assert result.tokens == expected_tokens(language_models / size, tokenizer.encode(prompt).ids, 60)


def test_repetition_penalty_equals_transformers(make_decoder: Callable[..., tuple[Path, Path]]) -> None:
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


def test_seed_reproduces_texts_and_differs_per_prompt(bundle: Path) -> None:
    options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 1.0, "seed": 3}
    first, again = ([result.tokens for result in generate(bundle, ["a", "a"], **options)] for _ in range(2))
    assert first == again
    assert first[0] != first[1]
    assert [result.tokens for result in generate(bundle, ["a"], **options)] == first[:1]
    other = options | {"seed": 4}
    assert one(bundle, "a", **other).tokens != first[0]


def test_text_is_independent_of_previous_texts(bundle: Path) -> None:
    (_, second) = generate(bundle, ["Some long prompt before it", "a"], max_new_tokens=10)
    assert second.tokens == one(bundle, "a", max_new_tokens=10).tokens


def test_end_token_stops_text_and_is_removed(make_decoder: Callable[..., tuple[Path, Path]]) -> None:
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


def test_stop_string_stops_text(bundle: Path) -> None:
    free = one(bundle, "Hello", max_new_tokens=40).text
    stop = next(found.group() for found in re.finditer(r"[ -~]{1,2}", free) if found.start() > 0)
    result = one(bundle, "Hello", max_new_tokens=40, stop=["never there", stop])
    assert (result.text, result.stopped) == (free[: free.index(stop)], "stop")


def test_text_stops_at_the_position_limit(bundle: Path) -> None:
    result = one(bundle, "x" * 60, max_new_tokens=10, ignore_eos=True)
    assert (len(result.tokens), result.stopped) == (4, "capacity")


def test_interrupted_text_keeps_partial_output(bundle: Path) -> None:
    whole = one(bundle, "Hello", max_new_tokens=20)
    with TextGenerator(bundle, max_new_tokens=20) as generator:
        run = generator.write("Hello")
        for _ in run:
            break
        result = run.result()
    assert result.stopped == "interrupted"
    assert 0 < len(result.tokens) < 20
    assert result.tokens == whole.tokens[: len(result.tokens)]


def test_conversation_uses_the_chat_template(bundle: Path) -> None:
    talk = [Message("system", "Short."), Message("user", "Why?")]
    answered, plain = generate(bundle, [talk, "<system>Short.<user>Why?>"], max_new_tokens=10)
    assert answered.tokens == plain.tokens


@pytest.mark.parametrize(
    ("prompt", "options", "expected_error"),
    [
        ("", {}, "the prompt is empty"),
        ("x" * 64, {}, "prompt of 64 tokens: the model takes at most 64, including at least one new token"),
        ("\udcff", {}, "not Unicode"),
        ("a", {"max_new_tokens": 0}, "max new tokens 0"),
        ("a", {"seed": -1}, "seed -1"),
        ("a", {"stop": [""]}, "stop string is empty"),
        ("a", {"strategy": "guess"}, "strategy 'guess': expected one of greedy, sample"),
        ("a", {"strategy": "greedy", "top_k": 3}, "leave out --top-k"),
        ("a", {"strategy": "greedy", "draft": "small"}, "takes no --draft"),
        ("a", {"top_p": 2.0}, "top-p 2.0"),
    ],
)
def test_invalid_options_raise_usage_error(
    prompt: str, options: dict[str, Any], expected_error: str, bundle: Path
) -> None:
    with pytest.raises(UsageError, match=re.escape(expected_error)):
        one(bundle, prompt, **options)


@pytest.mark.parametrize(
    ("options", "expected_error"),
    [
        ({"strategy": "bild"}, "strategy 'bild' needs a draft model: add --draft BUNDLE or --early-exit."),
        ({"strategy": "speculative"}, "strategy 'speculative' needs a draft model"),
        ({"strategy": "ngram", "draft": "same"}, "strategy 'ngram' takes no --draft. Leave it out, or choose"),
        ({"strategy": "sample", "draft": "same"}, "strategy 'sample' takes no --draft"),
        ({"strategy": "bild", "draft": "same", "fallback": 1.5}, "fallback 1.5: expected a probability, 0 to 1."),
        ({"strategy": "bild", "draft": "same", "fallback": math.nan}, "fallback nan: expected a probability"),
        ({"strategy": "bild", "draft": "same", "rollback": -0.5}, "rollback -0.5: expected 0 or more nats, or inf."),
        ({"strategy": "bild", "draft": "same", "rollback": math.nan}, "rollback nan: expected 0 or more nats"),
        ({"strategy": "bild", "draft": "same", "max_draft": 0}, "max draft 0: expected 1 to 1024."),
        ({"strategy": "bild", "draft": "same", "max_draft": 64}, "max draft 64: expected less than the 64 tokens"),
        ({"strategy": "speculative", "draft": "same", "window": 0}, "window 0: expected 1 to 1024."),
        ({"strategy": "ngram", "threads": 9_999_999_999}, "--threads 9999999999: expected 1 to 1024."),
        ({"strategy": "speculative", "draft": "same", "window": 64}, "window 64: expected less than the 64 tokens"),
        ({"strategy": "speculative", "draft": "short", "window": 48}, "window 48: expected less than the 48 tokens"),
        ({"strategy": "ngram", "window": 999}, "window 999: expected less than the 64 tokens that the models take."),
        ({"strategy": "bild", "draft": "same", "window": 3}, "takes no --window. Its options: --fallback, --rollback,"),
        ({"strategy": "speculative", "draft": "same", "max_draft": 3}, "takes no --max-draft. Its options: --window."),
        ({"fallback": 0.0}, "strategy 'greedy' takes no --fallback. Its options: none."),
        ({"strategy": "ngram", "batch": 0}, "batch 0: expected at least 1."),
        ({"strategy": "bild", "draft": "other"}, "its vocabulary is not that of"),
        ({"strategy": "bild", "draft": "/no/bundle"}, "/no/bundle"),
    ],
)
def test_invalid_strategies_are_rejected_in_one_line(
    options: dict[str, Any], expected_error: str, bundle: Path, short: Path, trained_pair: tuple[Path, Path]
) -> None:
    drafts = {"same": bundle, "short": short, "other": trained_pair[0]}
    if "draft" in options:
        options = options | {"draft": drafts.get(options["draft"], options["draft"])}
    with pytest.raises(IntaglioError) as refused:
        TextGenerator(bundle, **options)
    assert expected_error in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="session")
def short(make_decoder: Callable[..., tuple[Path, Path]]) -> Path:
    """A bundle of 48 positions."""
    return make_decoder("llama", max_position_embeddings=48)[1]


def test_failed_open_closes_engines(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    close = decoder.DecoderSession.close
    monkeypatch.setattr(decoder.DecoderSession, "close", lambda session: closed.append(session) or close(session))
    with pytest.raises(UsageError, match="window 64"):
        TextGenerator(bundle, strategy="speculative", draft=bundle, window=64)
    assert len(closed) == 2


@pytest.mark.parametrize("strategy", ["bild", "speculative"])
def test_prompt_filling_the_smaller_cache_is_rejected(strategy: str, bundle: Path, short: Path) -> None:
    with TextGenerator(bundle, strategy=strategy, draft=short, batch=2) as generator:
        with pytest.raises(UsageError, match=r"^prompt of 48 tokens: the model takes at most 48, [^\n]*$"):
            generator.write_batch(["Hello", "x" * 48])
        with pytest.raises(UsageError, match=r"^the prompt is empty"):
            generator.write_batch(["Hello", ""])
        for prompts in ([], ["a"] * 3):
            with pytest.raises(UsageError, match=f"^{len(prompts)} prompts at a time: expected 1 to 2."):
                generator.write_batch(prompts)
        (result,) = generator.write_batch(["x" * 47]).whole()
    assert (len(result.tokens), result.stopped in ("capacity", "eos")) == (1, True)


def test_single_text_in_a_batch_is_streamed(bundle: Path) -> None:
    expected = one(bundle, "Hello", max_new_tokens=20)
    with TextGenerator(bundle, batch=3, max_new_tokens=20) as generator:
        run = generator.write("Hello")
        assert "".join(run) == expected.text
        assert run.result().tokens == expected.tokens


@pytest.mark.parametrize("strategy", ["greedy", "ngram"])
def test_iteration_resumes_after_a_break(strategy: str, bundle: Path) -> None:
    options: dict[str, Any] = {"strategy": strategy, "max_new_tokens": 20}
    expected = one(bundle, "abcabcabc", **options)
    with TextGenerator(bundle, **options) as generator:
        for count in range(0, len(expected.tokens), 4):
            run = generator.write("abcabcabc")
            pieces = list(itertools.islice(run, count))
            result = run.whole()
            assert result.text.startswith("".join(pieces))
            assert (result.text, result.tokens) == (expected.text, expected.tokens)
            assert list(run) == []
            assert run.whole().tokens == expected.tokens


def test_batched_texts_can_be_read_sequentially(bundle: Path) -> None:
    expected = [one(bundle, prompt, max_new_tokens=20) for prompt in ("Hello", "abc")]
    with TextGenerator(bundle, batch=2, max_new_tokens=20) as generator:
        batch = generator.write_batch(["Hello", "abc"])
        assert ["".join(run) for run in batch.texts] == [result.text for result in expected]
        assert [run.result().tokens for run in batch.texts] == [result.tokens for result in expected]


def test_lazy_prompts_are_consumed_batch_by_batch(bundle: Path) -> None:
    """Texts are returned before all prompts are consumed."""
    asked: list[str] = []

    def prompts() -> Iterator[str]:
        for prompt in "abcde":
            asked.append(prompt)
            yield prompt

    results = generate(bundle, prompts(), batch=2, max_new_tokens=5)
    first = next(results)
    assert asked == ["a", "b"]
    assert [first.tokens, *(result.tokens for result in results)] == [
        one(bundle, prompt, max_new_tokens=5).tokens for prompt in "abcde"
    ]


def test_encoder_bundle_is_rejected(make_encoder: Callable[..., Path]) -> None:
    with pytest.raises(BundleError, match="its task is 'unknown', not 'generate'"):
        one(make_encoder(), "Hello")


def test_new_text_stops_the_previous_one(bundle: Path) -> None:
    alone = one(bundle, "World", max_new_tokens=20)
    with TextGenerator(bundle, max_new_tokens=20) as generator:
        before = generator.write("Hello")
        pieces = iter(before)
        first = next(pieces)
        after = generator.write("World")
        assert list(pieces) == []
        assert (before.result().text, before.result().stopped) == (first, "interrupted")
        assert after.whole().tokens == alone.tokens


def test_partial_result_does_not_change_the_text(bundle: Path) -> None:
    whole = one(bundle, "Hello", max_new_tokens=20)
    stop = [whole.text[5:9]]
    expected = one(bundle, "Hello", max_new_tokens=20, stop=stop)
    with TextGenerator(bundle, max_new_tokens=20, stop=stop) as generator:
        run = generator.write("Hello")
        assert "".join(piece for piece in run if run.result().tokens) == expected.text == run.result().text


def test_tokens_per_second_excludes_the_first_pass(bundle: Path) -> None:
    """Drafts accepted in the first pass are emitted with it."""
    options: dict[str, Any] = {"strategy": "bild", "draft": bundle, "fallback": 0.0, "rollback": math.inf}
    result = one(bundle, "Hello", max_new_tokens=8, max_draft=9, **options)
    assert (result.calls.large, len(result.tokens)) == (1, 8)
    assert result.tokens_per_second == pytest.approx(8 / result.seconds)
    result = one(bundle, "Hello", max_new_tokens=8, max_draft=3, **options)
    assert (result.calls.large, len(result.tokens)) == (2, 8)
    assert result.tokens_per_second == pytest.approx(4 / (result.seconds - result.prompt_seconds))


@pytest.mark.parametrize(
    ("options", "strategy", "source"),
    [
        ({}, "greedy", None),
        ({"temperature": 0.5}, "sample", None),
        ({"draft": "SELF"}, "auto", "draft model"),
        ({"draft": "SELF", "temperature": 0.5}, "auto", "draft model"),
        ({"draft": "SELF", "strategy": "bild"}, "bild", "draft model"),
        ({"strategy": "ngram"}, "ngram", "text"),
        ({"strategy": "auto", "top_k": 3}, "auto", "text"),
    ],
)
def test_default_strategy_and_draft_source(
    options: dict[str, Any], strategy: str, source: str | None, bundle: Path
) -> None:
    given = {name: bundle if value == "SELF" else value for name, value in options.items()}
    with TextGenerator(bundle, **given) as generator:
        assert (generator.strategy, generator.draft_source) == (strategy, source)


def test_early_exit_defaults_to_auto_draft_length(exiting: Path) -> None:
    with TextGenerator(exiting, early_exit=True, top_p=0.9) as generator:
        assert (generator.strategy, generator.draft_source) == ("auto", "early exit")


@pytest.mark.parametrize("strategy", ["medusa", "auto", "ngram"])
def test_self_drafting_model_is_the_draft_source(
    strategy: str, make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    export(
        str(save_drafts(make_decoder("llama")[0], tmp_path / "drafting", "medusa")), tmp_path / "bundle", check=False
    )
    with TextGenerator(tmp_path / "bundle", strategy=strategy) as generator:
        assert generator.draft_source == ("text" if strategy == "ngram" else "model")
