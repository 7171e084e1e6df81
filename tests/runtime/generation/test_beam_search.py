"""Beam search of decoders and encoder-decoders: the texts of transformers, in batches, and on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.generation.beam_search import beam_search
from intaglio.runtime.sampling.beams import BeamOptions
from intaglio.runtime.text.tokenizer import read_backend

Run = Callable[..., tuple[int, str, str]]
PROMPTS = ["Hello wo", "The", "A cat sat on", "no"]
TOKENS = 24


def library_texts(checkpoint: Path, bundle: Path, **options: Any) -> list[list[int]]:
    """The tokens that transformers generates for each prompt alone."""
    import torch
    import transformers

    encodes = Bundle.open(bundle).manifest.encoder is not None
    kind = transformers.AutoModelForSeq2SeqLM if encodes else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(checkpoint).eval()
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([read_backend(Bundle.open(bundle)).encode(prompt).ids])
        with torch.inference_mode():
            row = model.generate(input_ids=ids, do_sample=False, max_new_tokens=TOKENS, **options)[0].tolist()
        tokens, end = row[1:] if encodes else row[ids.shape[1] :], model.config.eos_token_id
        found.append(tokens[: tokens.index(end) + 1] if end in tokens else tokens)
    return found


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_texts_equal_transformers_in_any_batch(family: str, batch: int, request: pytest.FixtureRequest) -> None:
    make = request.getfixturevalue("make_decoder" if family == "gpt2" else "make_encoder_decoder")
    checkpoint, bundle = make(family)
    expected = library_texts(checkpoint, bundle, num_beams=3, length_penalty=0.5, no_repeat_ngram_size=3)
    options = BeamOptions(3, TOKENS, length_penalty=0.5, no_repeat_ngram=3)
    found = beam_search(bundle, PROMPTS, options, batch=batch)
    assert [each.tokens for each in found] == expected
    assert [each.prompt for each in found] == PROMPTS
    assert {each.stopped for each in found} <= {"eos", "length"}


def test_one_beam_is_greedy(tiny_decoder: Path) -> None:
    from intaglio import generate

    greedy = [each.tokens for each in generate(tiny_decoder, PROMPTS, max_new_tokens=TOKENS)]
    assert [each.tokens for each in beam_search(tiny_decoder, PROMPTS, BeamOptions(1, TOKENS))] == greedy


def test_text_ends_at_the_models_positions(tiny_decoder: Path) -> None:
    (found,) = beam_search(tiny_decoder, ["a" * 60], BeamOptions(2, 100))
    assert len(found.tokens) <= 4
    with pytest.raises(UsageError, match="prompt of 64 tokens"):
        beam_search(tiny_decoder, ["a" * 64], BeamOptions(2, 100))


def test_command_prints_the_text_and_its_score(intaglio: Run, tiny_decoder: Path) -> None:
    (found,) = beam_search(tiny_decoder, ["The"], BeamOptions(3, TOKENS, no_repeat_ngram=2))
    given = ("generate", tiny_decoder, "The", "--beams", "3", "--no-repeat-ngram", "2", "-n", TOKENS)
    code, out, _ = intaglio(*given, "--json")
    printed = json.loads(out)
    assert code == 0 and printed["tokens"] == found.tokens and printed["score"] == pytest.approx(found.score, abs=1e-6)
    code, out, err = intaglio(*given)
    assert (code, out) == (0, found.text + "\n")
    assert f"{len(found.tokens)} tokens, score {found.score:.4f}." in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--length-penalty", "2"), "--length-penalty is of beam search. Add --beams"),
        (("--beams", "2", "--temperature", "1"), "--temperature does not apply to beam search"),
        (("--beams", "2", "--strategy", "ngram"), "--strategy does not apply to beam search"),
        (("--beams", "2", "--trace"), "--trace does not apply to beam search"),
        (("--beams", "2", "--regex", "a+"), "--regex does not apply to beam search"),
        (("--beams", "2", "--no-repeat-ngram", "-1"), "no repeat ngram -1: expected at least 0"),
        (("--source-language", "en"), "language en: the tokenizer of this model has no languages"),
        (("--beams", "2", "--target-language", "en"), "language en: the tokenizer of this model has no languages"),
    ],
)
def test_options_that_do_not_apply_get_one_line(
    options: tuple[str, ...], message: str, intaglio: Run, tiny_decoder: Path
) -> None:
    code, out, err = intaglio("generate", tiny_decoder, "The", *options)
    assert (code, out) == (2, "") and err.startswith(f"intaglio: {message}") and err.count("\n") == 1
