"""The pair of language models: its training, and the shipped pair."""

from __future__ import annotations

import itertools
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import language_model
import numpy as np
import pytest
import python_text
import torch
import train_language_models
from covering import examples, few
from hypothesis import given, settings
from hypothesis import strategies as st
from language_model import Length, Shape, Tokens
from python_text import Document
from safetensors.torch import load_file
from tokenizers.pre_tokenizers import ByteLevel
from train_language_models import Measurements, Preset, Texts
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel, PreTrainedTokenizerFast

from intaglio.errors import UsageError

TINY = Shape(layers=1, width=16, heads=2, learning_rate=1e-2, dropout=0.1, steps=20, rows=2)
PRESET = Preset(vocabulary=300, context=16, small=TINY, large=TINY)


@pytest.fixture(scope="module")
def texts() -> Texts:
    """The beginnings of the longest topics of the manual, one of them held out."""
    taken = itertools.islice(python_text._topics(), 12)
    beginnings = [
        Document(subject, name, "\n\n".join(section.paragraphs)[:1500]) for subject, name, (section,) in taken
    ]
    return Texts.split(beginnings)


@pytest.fixture(scope="module")
def shipped(language_models: Path) -> dict[str, GPT2LMHeadModel]:
    return {
        label: AutoModelForCausalLM.from_pretrained(language_models / label, dtype=torch.float32).eval()
        for label in ("small", "large")
    }


@pytest.fixture(scope="module")
def tokenizer(language_models: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(language_models / "large")


@pytest.fixture(scope="module")
def held_out(language_models: Path, tokenizer: PreTrainedTokenizerFast) -> Tokens:
    text = (language_models / "held_out.txt").read_text(encoding="utf-8")
    return np.array(tokenizer.backend_tokenizer.encode(text).ids)


def stated(language_models: Path, label: str) -> list[float]:
    """The numbers of a model's row in README.md of the pair, after its size."""
    rows = (language_models / "README.md").read_text(encoding="utf-8").splitlines()
    (row,) = (row for row in rows if row.startswith(f"| `{label}/`"))
    return [float(re.sub("[^0-9.]", "", cell)) for cell in row.strip("|").split("|")[2:]]


@given(st.one_of(st.text(), st.binary().map(lambda data: data.decode("latin-1"))))
def test_shipped_tokenizer_round_trips_any_text(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_byte_has_a_token(tokenizer: PreTrainedTokenizerFast) -> None:
    pieces = tokenizer.get_vocab()
    assert set(ByteLevel.alphabet()) <= set(pieces)
    assert len(ByteLevel.alphabet()) == 256
    assert pieces[language_model.END] == 0
    assert sorted(pieces.values()) == list(range(len(pieces)))


@pytest.mark.proof
@pytest.mark.parametrize("seed", few([0, 1], [0]))
def test_training_is_reproducible(texts: Texts, tmp_path: Path, seed: int) -> None:
    runs = [tmp_path / "one", tmp_path / "other"]
    measured = [
        train_language_models.train_pair("tests", PRESET, texts, run, steps=3, seed=seed, precision="float32")
        for run in runs
    ]
    for label in ("small", "large"):
        weights = [load_file(run / label / "model.safetensors") for run in runs]
        assert weights[0].keys() == weights[1].keys()
        for name, value in weights[0].items():
            assert value.dtype == torch.float16
            assert torch.equal(value, weights[1][name]), name
    assert measured[0].large.perplexity == measured[1].large.perplexity
    assert measured[0].large.steps == 3
    assert (runs[0] / "held_out.txt").read_bytes() == (runs[1] / "held_out.txt").read_bytes()
    assert f"{measured[0].large.perplexity:.2f}" in (runs[0] / "README.md").read_text()


@pytest.fixture(scope="module")
def one_step(texts: Texts, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Measurements]:
    """A pair trained for a step with the seed 0: its folder and what was measured. Read-only."""
    out = tmp_path_factory.mktemp("one_step") / "out"
    return out, train_language_models.train_pair("tests", PRESET, texts, out, 1, None, 0, "float32")


@pytest.mark.proof
def test_weights_depend_on_the_seed(texts: Texts, one_step: tuple[Path, Measurements], tmp_path: Path) -> None:
    other = train_language_models.train_pair("tests", PRESET, texts, tmp_path / "other", 1, None, 1, "float32")
    assert one_step[1].large.perplexity_float32 != other.large.perplexity_float32


def test_training_lowers_the_loss(texts: Texts) -> None:
    tokenizer = language_model.byte_level_tokenizer(texts.training, 300, 16)
    tokens = language_model.stream(tokenizer, texts.training)
    torch.manual_seed(0)
    model = language_model.new_model(TINY, 300, 16, 0)
    judged = tokens[:2000]
    untrained = language_model.perplexity(model.eval(), judged)
    told: list[language_model.Progress] = []
    shape = replace(TINY, rows=16)
    language_model.train(model, shape, tokens, Length(200), 0, torch.float32, told.append)
    assert untrained > 250
    assert language_model.perplexity(model, judged) < 0.9 * language_model.unigram_perplexity(tokens, judged, 300)
    assert [progress.step for progress in told] == list(range(20, 201, 20))
    assert told[-1].loss < told[0].loss


@pytest.mark.proof
def test_time_limit_ends_the_training(texts: Texts, tmp_path: Path) -> None:
    measured = train_language_models.train_pair("tests", PRESET, texts, tmp_path / "out", minutes=1 / 60)
    assert measured.large.steps >= 1
    assert 0.85 <= measured.large.seconds < 10


def test_text_files_hold_the_scored_tokens(one_step: tuple[Path, Measurements]) -> None:
    out, measured = one_step
    tokenizer = AutoTokenizer.from_pretrained(out / "small")
    ids = tokenizer.backend_tokenizer.encode((out / "held_out.txt").read_text()).ids
    model = AutoModelForCausalLM.from_pretrained(out / "small", dtype=torch.float32)
    assert len(ids) == measured.held_out_tokens
    assert language_model.perplexity(model.eval(), np.array(ids)) == pytest.approx(measured.small.perplexity)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 0


@given(length=st.integers(2, 80))
@settings(max_examples=examples(15))
def test_each_token_is_scored_once_after_at_least_half_a_context(length: int) -> None:
    """Against the definition, one token at a time."""
    torch.manual_seed(1)
    model = language_model.new_model(TINY, 50, 16, 0).eval()
    tokens = np.random.default_rng(length).integers(0, 50, length)
    losses, choices = language_model.predictions(model, tokens)
    for index in range(1, length):
        start = max(0, (index - 16 + 8) // 8 * 8)
        with torch.inference_mode():
            logits = model(torch.from_numpy(tokens[None, start:index])).logits[0, -1]
        assert losses[index - 1] == pytest.approx(-logits.log_softmax(0)[tokens[index]].item(), abs=1e-5)
        assert choices[index - 1] == logits.argmax()


def test_learning_rate_warms_up_and_decays_to_zero() -> None:
    rates = [language_model.rate(part / 1000) for part in range(1001)]
    top = rates.index(max(rates))
    assert max(rates) == pytest.approx(1)
    assert 0 < rates[0] < 0.1
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] == pytest.approx(0)


def test_unigram_perplexity_of_uniform_tokens_is_the_vocabulary_size() -> None:
    tokens = np.arange(10).repeat(7)
    assert language_model.unigram_perplexity(tokens, tokens, 10) == pytest.approx(10)


def test_command_prints_the_numbers_of_the_readme(
    texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_language_models, "PRESETS", {"tests": PRESET})
    monkeypatch.setattr(train_language_models, "documents", lambda sources: [])
    monkeypatch.setattr(Texts, "split", lambda found: texts)
    arguments = ["--out", str(tmp_path / "out"), "--steps", "2", "--json", "--precision", "float32"]
    monkeypatch.setattr(sys, "argv", ["train_language_models.py", *arguments])
    train_language_models.run_command("train_language_models.py", train_language_models.command)
    printed = json.loads(capsys.readouterr().out)
    exact, rounded, _ = stated(tmp_path / "out", "large")[-3:]
    assert printed["large"]["perplexity_float32"] == pytest.approx(exact, abs=0.01)
    assert printed["large"]["perplexity"] == pytest.approx(rounded, abs=0.01)
    assert "--preset tests --steps 2 --seed 0" in (tmp_path / "out" / "README.md").read_text()


def test_existing_output_is_refused_and_kept(texts: Texts, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(UsageError, match="exists"):
        train_language_models.train_pair("tests", PRESET, texts, tmp_path, steps=1)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_library_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tokens of training text"):
        train_language_models.train_pair("tests", PRESET, Texts(("a",), ("b",)), tmp_path / "out", steps=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "3", "--minutes", "1", "--out", "out"], "--steps and --minutes: got both"),
        (["--preset", "huge", "--out", "out"], "'huge' is not one of"),
        (["--steps", "0", "--out", "out"], "--steps"),
        (["--out", "missing/out"], "is not a directory"),
    ],
)
def test_errors_print_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train_language_models.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        train_language_models.run_command("train_language_models.py", train_language_models.command)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_shipped_pair_is_small(language_models: Path) -> None:
    weights = [language_models / label / "model.safetensors" for label in ("small", "large")]
    assert sum(path.stat().st_size for path in weights) < 6_200_000
    assert all(value.dtype == torch.float16 for path in weights for value in load_file(path).values())


def test_shipped_models_share_their_tokenizer(language_models: Path) -> None:
    files = [(language_models / label / "tokenizer.json").read_bytes() for label in ("small", "large")]
    assert files[0] == files[1]


@pytest.mark.proof  # these files change with each training; a test below checks that the models generate text
def test_shipped_pair_has_the_stated_perplexities(
    language_models: Path, shipped: dict[str, GPT2LMHeadModel], held_out: Tokens
) -> None:
    found = {label: language_model.predictions(model, held_out) for label, model in shipped.items()}
    perplexities = {label: language_model.perplexity_of(losses) for label, (losses, _) in found.items()}
    for label, value in perplexities.items():
        exact, rounded, _ = stated(language_models, label)[-3:]
        assert value == pytest.approx(rounded, rel=0.02)
        assert value == pytest.approx(exact, rel=0.02)
    assert perplexities["large"] < 0.8 * perplexities["small"]
    alike = (found["small"][1] == found["large"][1]).mean()
    (percent,) = re.findall(r"likeliest at ([0-9.]+)%", (language_models / "README.md").read_text(encoding="utf-8"))
    assert 100 * alike == pytest.approx(float(percent), abs=1)


def test_shipped_held_out_text_was_not_trained_on(language_models: Path) -> None:
    """Also on a Python whose library differs from the training text."""
    parts = [
        {" ".join(text.split()) for text in (language_models / name).read_text(encoding="utf-8").split("\n\n")}
        for name in ("held_out.txt", "calibration.txt")
    ]
    assert not {text for text in parts[0] & parts[1] if len(text) >= 2 * python_text.SHORT}


def test_target_model_generates_text(tokenizer: PreTrainedTokenizerFast, shipped: dict[str, GPT2LMHeadModel]) -> None:
    prompt = tokenizer("Return the number of", return_tensors="pt")
    written = shipped["large"].generate(**prompt, max_new_tokens=20, do_sample=False, pad_token_id=0)
    text = tokenizer.decode(written[0])
    assert text.startswith("Return the number of ")
    assert all(letter.isprintable() or letter == "\n" for letter in text)
