"""Encoder-decoders that are exported by tracing write what `transformers` writes, greedy and by beam search."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_decoders import END
from tiny_translators import KINDS, OTHERS, save_translator, write_languages
from tokenizers import Tokenizer

from intaglio.bundle.bundle import Bundle
from intaglio.errors import SourceError, UsageError
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.runtime.generation.beam_search import beam_search
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.sampling.beams import BeamOptions

SOURCES = ["Hello wo", "The", "A cat sat on the mat, and more"]
TOKENS = 40
LANGUAGES = {"__en__": 257, "__fr__": 258, "__zh__": 259}
NEVER = [65, 70]
SEARCHES: list[dict[str, Any]] = [
    {"num_beams": 3},
    {"num_beams": 4, "length_penalty": 2.0, "no_repeat_ngram_size": 2},
    {"num_beams": 2, "early_stopping": True, "min_new_tokens": 12},
    {"num_beams": 5, "length_penalty": -1.0},
]


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an M2M-100 of several languages, with a forced one, and tokens that it never writes."""
    folder = tmp_path_factory.mktemp("translator")
    checkpoint = save_translator(
        folder / "checkpoint",
        "m2m_100",
        forced_bos_token_id=LANGUAGES["__fr__"],
        bad_words_ids=[[each] for each in NEVER],
    )
    write_languages(checkpoint, LANGUAGES)
    assert export(str(checkpoint), folder / "bundle").passed
    return folder


def library_texts(checkpoint: Path, first: int | None = None, **options: Any) -> list[list[int]]:
    """The tokens that transformers generates for each of `SOURCES`, in one batch, after those that are always the same.

    `first`: in place of the language that the tokenizer writes.
    """
    import torch
    import transformers

    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint).eval()
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    rows = [tokenizer.encode(source).ids for source in SOURCES]
    rows = rows if first is None else [[first, *row[1:]] for row in rows]
    longest, padding = max(map(len, rows)), model.config.pad_token_id
    ids = torch.tensor([row + [padding] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    forced = options.get("forced_bos_token_id", model.generation_config.forced_bos_token_id)
    count = TOKENS + (forced is not None)
    with torch.inference_mode():
        found = model.generate(input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=count, **options)
    return [until(row[1 + (forced is not None) :].tolist(), END) for row in found]


def until(tokens: list[int], end: int) -> list[int]:
    """The tokens up to the first `end`, with it."""
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def greedy_texts(bundle: Path, **options: Any) -> list[list[int]]:
    with TextGenerator(bundle, max_new_tokens=TOKENS, batch=3, **options) as generator:
        return [text.tokens for text in generator.write_batch(SOURCES).whole()]


def searched_texts(bundle: Path, options: dict[str, Any], **more: Any) -> list[list[int]]:
    given = BeamOptions(
        beams=options["num_beams"],
        max_new_tokens=TOKENS,
        length_penalty=options.get("length_penalty", 1.0),
        no_repeat_ngram=options.get("no_repeat_ngram_size", 0),
        early_stopping=options.get("early_stopping", False),
        min_new_tokens=options.get("min_new_tokens", 0),
    )
    return [each.tokens for each in beam_search(bundle, SOURCES, given, batch=2, **more)]


@pytest.mark.proof
@pytest.mark.parametrize("model_type", [*KINDS, *OTHERS])
def test_texts_equal_transformers(model_type: str, tmp_path: Path, proved: Callable[..., None]) -> None:
    """Logits in the check of the export; texts of 40 tokens of a batch of three, greedy and by beams; compressed."""
    checkpoint, bundle = save_translator(tmp_path / "checkpoint", model_type), tmp_path / "bundle"
    assert export(str(checkpoint), bundle).passed
    assert greedy_texts(bundle) == library_texts(checkpoint, num_beams=1)
    for options in SEARCHES:
        assert searched_texts(bundle, options) == library_texts(checkpoint, **options), options
    for recipe in ("rtn", "int8-weights", "float16"):
        result = compress(bundle, tmp_path / recipe, recipe=recipe)
        assert result.bytes_after < result.bytes_before
        assert len(greedy_texts(tmp_path / recipe)) == len(SOURCES)
    proved(
        model_type,
        "text-to-text",
        "traced",
        tested=["logits", "text"],
        recipes=["float16", "int8-weights", "rtn"],
        strategies=["greedy", "beam search"],
        targets=["ort-cpu"],
    )


def test_language_and_forbidden_tokens_of_the_checkpoint_hold(translator: Path) -> None:
    found = greedy_texts(translator / "bundle")
    assert found == library_texts(translator / "checkpoint", num_beams=1)
    assert not set(NEVER) & {token for text in found for token in text}
    manifest = Bundle.open(translator / "bundle").manifest
    assert manifest.encoder is not None
    assert manifest.encoder.languages == {"en": 257, "fr": 258, "zh": 259}
    assert manifest.encoder.start == (END, 258)


def test_languages_come_from_the_options(translator: Path) -> None:
    expected = library_texts(translator / "checkpoint", first=258, num_beams=1, forced_bos_token_id=259)
    assert greedy_texts(translator / "bundle", source_language="fr", target_language="zh") == expected
    assert expected != library_texts(translator / "checkpoint", num_beams=1)
    for language in ({"source_language": "de"}, {"target_language": "de"}):
        with pytest.raises(UsageError, match="language de: expected one of en, fr, zh"):
            greedy_texts(translator / "bundle", **language)


@pytest.mark.parametrize("options", SEARCHES)
def test_beam_search_equals_transformers(options: dict[str, Any], translator: Path) -> None:
    languages = {"source_language": "zh", "target_language": "en"}
    expected = library_texts(translator / "checkpoint", first=259, forced_bos_token_id=257, **options)
    assert searched_texts(translator / "bundle", options, **languages) == expected


def test_source_beyond_the_positions_is_refused(translator: Path) -> None:
    with TextGenerator(translator / "bundle") as generator:
        assert generator.scheduler.source_limit == 300
        with pytest.raises(UsageError, match="the encoder takes at most 300"):
            generator.write("a" * 299)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"forced_bos_token_id": 272}, "forced_bos_token_id is 272, the vocabulary has 272 tokens"),
        ({"bad_words_ids": [["a"]]}, "suppress_tokens or bad_words_ids is 'a'"),
        ({"decoder_start_token_id": True}, "decoder_start_token_id is True"),
    ],
)
def test_invalid_token_is_refused_in_one_line(
    change: dict[str, Any], message: str, translator: Path, tmp_path: Path
) -> None:
    shutil.copytree(translator / "checkpoint", tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(SourceError, match=message):
        export(str(tmp_path / "checkpoint"), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_export_without_its_check_is_refused(translator: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--no-check: the graphs of a M2M100ForConditionalGeneration are traced"):
        export(str(translator / "checkpoint"), tmp_path / "bundle", check=False)


def test_attention_of_its_own_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "led", "architectures": ["LEDForConditionalGeneration"]})
    )
    with pytest.raises(
        SourceError, match="LEDForConditionalGeneration is not supported: it computes its attention itself"
    ):
        export(str(tmp_path), tmp_path / "bundle")
