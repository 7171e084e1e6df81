"""`intaglio train ngram`: beam search reads its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from intaglio.runtime.speech.ngram_model import NgramModel

Run = Callable[..., tuple[int, str, str]]


def test_language_model_prefers_its_training_text(intaglio: Run, tmp_path: Path) -> None:
    text, output = tmp_path / "text.txt", tmp_path / "words.arpa"
    text.write_text("the cat sat\n\nthe cat ran\nthe dog sat\n")
    code, out, err = intaglio("train", "ngram", text, "-o", output, "--order", 2, "--json")
    assert (code, err) == (0, "") and out.count("\n") == 1
    # <unk>, <s>, </s> and 5 words; 3 after <s> and "the", 2 after "cat", 1 each after "dog", "sat" and "ran"
    assert json.loads(out)["ngrams"] == [8, 8]
    model = NgramModel.open(output)
    _, the = model.score(model.begin, "the")
    assert model.score(the, "cat")[0] > model.score(the, "dog")[0] > model.score(the, "ran")[0]
    code, out, err = intaglio("train", "ngram", text, "-o", output)
    assert (code, out) == (2, "") and err.count("\n") == 1 and "Add --force" in err
    code, out, _ = intaglio("train", "ngram", text, "-o", output, "--force")
    assert code == 0 and "n-grams of 1 to 3 words" in out


def test_text_without_words_prints_one_line_and_writes_nothing(intaglio: Run, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n \n")
    code, out, err = intaglio("train", "ngram", tmp_path / "text.txt", "-o", tmp_path / "words.arpa")
    assert (code, out) == (2, "") and err.count("\n") == 1 and "has no words" in err
    assert not (tmp_path / "words.arpa").exists()
