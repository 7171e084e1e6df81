"""N-gram models: probabilities by hand and by the definition of back-off, and invalid files."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.errors import UsageError
from intaglio.runtime.speech.ngram_model import NgramModel

ARPA = r"""written by hand

\data\
ngram 1=5
ngram 2=3
ngram 3=1

\1-grams:
-99 <s> -0.5
-1.0 </s>
-1.5 <unk> -0.25
-0.75 the -0.125
-1.25 cat -0.375

\2-grams:
-0.5 <s> the -0.0625
-0.25 the cat -0.875
-0.125 cat </s>

\3-grams:
-0.03125 <s> the cat

\end\
"""


def written(folder: Path, text: str, name: str = "model.arpa") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def total(model: NgramModel, words: str) -> float:
    """log10 probability of words from the beginning of a sentence."""
    log10, state = 0.0, model.begin
    for word in words.split():
        added, state = model.score(state, word)
        log10 += added
    return log10


@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("the", -0.5),  # p(the | <s>)
        ("the cat", -0.5 - 0.03125),  # p(cat | <s> the)
        ("the the", -0.5 + (-0.0625 - 0.125 - 0.75)),  # bo(<s> the) bo(the) p(the)
        ("the cat </s>", -0.5 - 0.03125 + (-0.875 - 0.125)),  # (the cat) is the state: bo(the cat) p(</s> | cat)
        ("cat", -0.5 - 1.25),  # bo(<s>) p(cat)
        ("cat cat", -0.5 - 1.25 + (-0.375 - 1.25)),
        ("dog", -0.5 - 1.5),  # bo(<s>) p(<unk>)
        ("dog the", -0.5 - 1.5 + (-0.25 - 0.75)),  # bo(<unk>) p(the)
        ("the dog", -0.5 + (-0.0625 - 0.125 - 1.5)),
    ],
)
def test_back_off_equals_hand_computation(tmp_path: Path, name: str, words: str, expected: float) -> None:
    assert total(NgramModel.open(written(tmp_path, ARPA, name)), words) == pytest.approx(expected, abs=1e-9)


def test_unknown_word_without_unk_counts_as_the_rarest(tmp_path: Path) -> None:
    without = ARPA.replace("-1.5 <unk> -0.25\n", "").replace("ngram 1=5", "ngram 1=4")
    model = NgramModel.open(written(tmp_path, without))
    assert "dog" not in model and "cat" in model
    assert total(model, "dog") == pytest.approx(-0.5 - 1.25)
    assert total(model, "the dog cat") == pytest.approx(-0.5 + (-0.0625 - 0.125 - 1.25) - 1.25)


def test_states_with_equal_futures_are_equal(tmp_path: Path) -> None:
    """The longest n-grams are no contexts: after them the state is their longest end that is one."""
    model = NgramModel.open(written(tmp_path, ARPA))
    _, the = model.score(model.begin, "the")
    _, after_trigram = model.score(the, "cat")
    _, after_bigram = model.score(model.score(model.score(model.begin, "cat")[1], "the")[1], "cat")
    assert after_trigram == after_bigram


def test_state_backs_off_over_missing_contexts(tmp_path: Path) -> None:
    """After a b c d, without (b c d), the state is (c d)."""
    ngrams: Ngrams = {(word,): (-1.0, -0.5) for word in "abcde"}
    for ngram in ("ab", "bc", "cd", "abc", "cde", "abcd"):
        ngrams[tuple(ngram)] = (-0.25 * len(ngram), -0.125)
    model = NgramModel.open(written(tmp_path, arpa(ngrams)))
    state = model.begin
    for word in "abcd":
        _, state = model.score(state, word)
    assert model.score(state, "e")[0] == pytest.approx(-0.75)


WORDS = ["<s>", "</s>", "a", "b", "c"]
Ngrams = dict[tuple[str, ...], tuple[float, float]]  # words -> log10 probability, log10 back-off weight


@st.composite
def models(draw: st.DrawFn) -> Ngrams:
    """Random n-grams of up to four words, each with its context, but not always with its end."""
    value = st.integers(-16, 0).map(lambda number: number / 8)
    found: Ngrams = {(word,): (draw(value), draw(value)) for word in WORDS}
    for order in range(2, draw(st.integers(1, 4)) + 1):
        contexts = [ngram for ngram in found if len(ngram) == order - 1]
        candidates = [(*context, word) for context in contexts for word in WORDS]
        for ngram in draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=8, unique=True)):
            found[ngram] = (draw(value), draw(value))
    return found


def arpa(ngrams: Ngrams) -> str:
    orders = [[ngram for ngram in ngrams if len(ngram) == order] for order in range(1, max(map(len, ngrams)) + 1)]
    lines = ["\\data\\", *(f"ngram {order}={len(members)}" for order, members in enumerate(orders, 1))]
    for order, members in enumerate(orders, 1):
        lines += ["", f"\\{order}-grams:"]
        for ngram in members:
            log_prob, backoff = ngrams[ngram]
            lines.append(f"{log_prob}\t{' '.join(ngram)}" + (f"\t{backoff}" if order < len(orders) else ""))
    return "\n".join([*lines, "", "\\end\\", ""])


def by_definition(ngrams: Ngrams, context: tuple[str, ...], word: str) -> float:
    if (*context, word) in ngrams:
        return ngrams[(*context, word)][0]
    backoff = ngrams[context][1] if context in ngrams else 0.0
    return backoff + by_definition(ngrams, context[1:], word)


@settings(max_examples=examples(80), deadline=None)
@given(models(), st.lists(st.sampled_from(WORDS[1:]), max_size=12))
def test_any_model_follows_the_definition_of_back_off(
    tmp_path_factory: pytest.TempPathFactory, ngrams: Ngrams, sentence: list[str]
) -> None:
    model = NgramModel.open(written(tmp_path_factory.mktemp("arpa"), arpa(ngrams)))
    order = max(map(len, ngrams))
    history, state = ["<s>"], model.begin
    for word in sentence:
        context = tuple(history[max(0, len(history) - order + 1) :])
        found, state = model.score(state, word)
        assert found == pytest.approx(by_definition(ngrams, context, word), abs=1e-6)
        history.append(word)


def test_probabilities_sum_to_one_after_any_state(tmp_path: Path) -> None:
    """A model whose back-off weights are normalised stays normalised."""
    p = {("a",): 0.5, ("b",): 0.3, ("</s>",): 0.2}
    backoff = (1 - 0.6) / (1 - p[("b",)])  # of a, which has the bigram (a b) of 0.6
    ngrams: Ngrams = {word: (float(np.log10(value)), 0.0) for word, value in p.items()}
    ngrams[("a",)] = (ngrams[("a",)][0], float(np.log10(backoff)))
    ngrams[("a", "b")] = (float(np.log10(0.6)), 0.0)
    model = NgramModel.open(written(tmp_path, arpa(ngrams)))
    _, after = model.score(model.begin, "a")
    for state in (model.begin, after):
        assert sum(10 ** model.score(state, word)[0] for (word,) in p) == pytest.approx(1, abs=1e-6)


Change = Callable[[str], str]
WRONG: dict[str, tuple[Change, str]] = {
    "no ARPA file": (lambda text: "hello\n" * 2000, "line 1000: no"),
    "empty": (lambda text: "", "line 1: the file ends"),
    "cut": (lambda text: text[: text.index("\\3-grams")], "line 20: the file ends before"),
    "cut within a line": (lambda text: text[: text.index("cat </s>") + 3], "line 18: 2 fields"),
    "orders out of order": (
        lambda text: text.replace("ngram 2=3\n", ""),
        "line 5: 'ngram 3=1', expected ngram 2=COUNT",
    ),
    "a count that is no number": (lambda text: text.replace("ngram 1=5", "ngram 1=x"), "line 4"),
    "no words": (lambda text: text.replace("ngram 1=5\nngram 2=3\nngram 3=1\n", ""), "line 5: no words"),
    "a huge count": (lambda text: text.replace("ngram 3=1", "ngram 3=999999999999"), "line 6: more than"),
    "another number of entries": (lambda text: text.replace("ngram 2=3", "ngram 2=4"), "line 20: 3 2-grams, but"),
    "the wrong section": (lambda text: text.replace("\\2-grams:", "\\3-grams:"), "line 15: .*expected .*2-grams:"),
    "too many words": (lambda text: text.replace("the cat -0.875", "the cat cat cat"), "line 17: 5 fields, expected"),
    "a probability that is no number": (lambda text: text.replace("-1.25 cat", "x cat"), "line 13: 'x', expected"),
    "NaN": (lambda text: text.replace("-1.25 cat", "nan cat"), "line 13: 'nan', expected a log10 value"),
    "an infinite weight": (lambda text: text.replace("-0.375", "1e999"), "line 13: '1e999', expected"),
    "a probability above 1": (lambda text: text.replace("-1.25 cat", "0.5 cat"), "line 13: .*at most 0"),
    "a word twice": (lambda text: text.replace("-1.25 cat", "-1.25 the"), "line 13: the word 'the', which an earlier"),
    "an n-gram twice": (lambda text: text.replace("the cat -0.875", "<s> the 0"), "line 17: a 2-gram that an earlier"),
    "an unknown word": (
        lambda text: text.replace("cat </s>", "dog </s>"),
        "line 18: the word 'dog', which is no 1-gram",
    ),
    "no context": (lambda text: text.replace("<s> the cat", "cat cat the"), "line 21: an n-gram without its context"),
    "a line that is too long": (lambda text: text.replace("by hand", "x" * 70_000), "line 1: longer than"),
    "no end": (lambda text: text.replace("\\end\\", "\\4-grams:"), "line 23: .*expected .*end"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
def test_invalid_file_error_names_the_line(tmp_path: Path, wrong: str, name: str) -> None:
    change, message = WRONG[wrong]
    with pytest.raises(UsageError, match=message) as refused:
        NgramModel.open(written(tmp_path, change(ARPA), name))
    assert "\n" not in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_unreadable_files_are_one_line_errors(tmp_path: Path) -> None:
    whole = gzip.compress(ARPA.encode())
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "damaged.gz").write_bytes(whole[:20] + b"\xff" * 40 + whole[60:])
    (tmp_path / "latin.arpa").write_bytes(ARPA.replace("cat", "caf\xe9").encode("latin-1"))
    for name in ("none.arpa", ".", "cut.gz", "damaged.gz", "latin.arpa"):
        with pytest.raises(UsageError, match=r"language model .*Give a readable ARPA file") as refused:
            NgramModel.open(tmp_path / name)
        assert "\n" not in str(refused.value)


def test_words_may_hold_any_script_and_no_break_spaces(tmp_path: Path) -> None:
    model = NgramModel.open(written(tmp_path, ARPA.replace("cat", "über\u00a0ñ")))
    assert "über\u00a0ñ" in model


def test_empty_section_is_accepted(tmp_path: Path) -> None:
    text = ARPA.replace("ngram 3=1", "ngram 3=0").replace("-0.03125 <s> the cat\n", "")
    assert total(NgramModel.open(written(tmp_path, text)), "the cat") == pytest.approx(-0.5 - 0.0625 - 0.25)


def test_state_is_independent_of_sentence_splits(tmp_path: Path) -> None:
    model = NgramModel.open(written(tmp_path, ARPA))
    states = {}
    for words in itertools.product(["the", "cat", "dog"], repeat=4):
        state = model.begin
        for word in words:
            _, state = model.score(state, word)
        assert states.setdefault(words[2:], state) == state
