"""The task of generating prose from its words, and the program that trains a pair of T5s for it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import prose
import pytest
import python_text
import torch
import train_text_to_text as program
from hypothesis import given
from hypothesis import strategies as st
from python_text import Document


def test_words_have_no_punctuation_and_markup() -> None:
    assert prose.words_of("Call `f(x)`; it's *not* a_b.") == "Call f x it s not a b"


def test_paragraphs_are_prose_without_duplicates() -> None:
    text = (
        "A sentence that is long enough to be taken, as it ends well.\n\n"
        "x = [1, 2, 3]; y = {4: 5}; z = (6, 7, 8); print(x, y, z).\n\n"
        "    # A comment that stands over two lines of the source,\n    # and is one paragraph.\n\n"
        "no capital letter at the beginning of this one, so it is none.\n\n"
        "A sentence that is long enough to be taken, as it ends well."
    )
    assert prose.paragraphs([Document("module a", "a", text)]) == [
        "A sentence that is long enough to be taken, as it ends well.",
        "A comment that stands over two lines of the source, and is one paragraph.",
    ]


@given(lengths=st.lists(st.integers(1, 120), min_size=1, max_size=6))
def test_passages_are_consecutive_sentences_within_the_bounds(lengths: list[int]) -> None:
    sentences = [f"{chr(65 + number)}{'x' * length}." for number, length in enumerate(lengths)]
    found = prose.passages(" ".join(sentences))
    assert all(prose.LEAST <= len(passage) <= prose.MOST for passage in found)
    runs = {" ".join(sentences[first:end]) for first in range(len(sentences)) for end in range(first + 1, 7)}
    assert set(found) == {run for run in runs if prose.LEAST <= len(run) <= prose.MOST}


def test_passages_depend_on_the_seed() -> None:
    texts = [f"Sentence {number} says something that is long enough. {'And more of it. ' * 4}" for number in range(20)]
    first, again, other = (list(prose.pairs(texts, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert all(pair.words == prose.words_of(pair.prose) for pair in first)


def test_heads_initially_attend_to_neighbours_and_the_same_source_word() -> None:
    torch.manual_seed(0)
    model = program.new_model(replace(program.SHAPES["small"], width=128, heads=2), 50).eval()
    model.set_attn_implementation("eager")
    ids = torch.randperm(48)[None, :12] + 2
    with torch.inference_mode():
        found = model(input_ids=ids, decoder_input_ids=ids, output_attentions=True)
    looked = {"encoder": found.encoder_attentions[0][0], "decoder": found.decoder_attentions[0][0]}
    for name, head, offset in (("encoder", 0, 1), ("encoder", 1, -1), ("decoder", 0, -1), ("decoder", 1, -2)):
        assert float(torch.diagonal(looked[name][head], offset=offset).mean()) > 0.9
    assert (found.cross_attentions[0][0].mean(0).argmax(-1) == torch.arange(12)).float().mean() > 0.9


@pytest.mark.proof
def test_pair_is_written_with_its_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subjects = [f"module m{number}" for number in range(60)]
    assert {python_text.is_held_out(subject) for subject in subjects} == {True, False}
    found = [
        Document(subject, subject, f"The text of {subject}, {word}, says what it is for.")
        for subject in subjects
        for word in ("first", "second", "third")
    ]
    shape = replace(program.SHAPES["small"], encoder_layers=1, decoder_layers=1, width=16, heads=2, pairs=8)
    monkeypatch.setattr(program, "documents", lambda sources=False: found)
    monkeypatch.setattr(program, "SHAPES", {"small": shape, "large": replace(shape, width=32)})
    monkeypatch.setattr(program, "JUDGED", 4)
    monkeypatch.setattr(program, "LONGEST", 60)
    measured = program.train_models(tmp_path / "pair", ["small", "large"], steps=3)
    assert measured.models["large"].parameters > measured.models["small"].parameters
    assert measured.words_alone.rouge_1 > 90
    names = {path.name for path in (tmp_path / "pair").iterdir()}
    assert names == {"README.md", "small", "large", "held_out.jsonl", "validation.jsonl", "calibration.jsonl"}
    assert not list((tmp_path / "pair").rglob("*.bin"))
    held_out = [json.loads(line) for line in (tmp_path / "pair" / "held_out.jsonl").read_text().splitlines()]
    training = [json.loads(line) for line in (tmp_path / "pair" / "calibration.jsonl").read_text().splitlines()]
    assert len(held_out) == 4
    assert not {pair["reference"] for pair in held_out} & {pair["reference"] for pair in training}
    assert f"| {measured.models['small'].parameters:,} |" in (tmp_path / "pair" / "README.md").read_text()


def test_existing_output_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train_text_to_text.py", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        program.run_command("train_text_to_text.py", program.command)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("train_text_to_text.py: --out")
