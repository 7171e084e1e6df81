"""Estimate a word n-gram model from text, and write it as an ARPA file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from intaglio.errors import UsageError
from intaglio.files.atomic import atomic_write, check_output_file
from intaglio.files.input_files import read_text, text_lines
from intaglio.runtime.speech.arpa import MAX_ORDER
from intaglio.runtime.speech.ngram_model import BEGIN, END, UNKNOWN

Ngram = tuple[str, ...]
DISCOUNT = 0.75  # where the text has too few n-grams to estimate it; usual estimates are near it
UNK = UNKNOWN[0]


def estimate(text: str | Path, output: str | Path, order: int = 3, force: bool = False) -> None:
    """Estimate a model of `order` words from a UTF-8 text file, one sentence per line, and write it to `output`.

    The words are not normalised: write them like the recogniser (case, no punctuation). Raises `UsageError`
    for a text without words or with the words <s>, </s> and <unk>, and for an output that exists (without `force`).
    """
    text, output = Path(text), Path(output)
    if not 1 <= order <= MAX_ORDER:
        raise UsageError(f"order {order}, expected 1 to {MAX_ORDER} words.")
    check_output_file(output, force, "the language model")
    sentences = list(_sentences(read_text(text, "the text"), text))
    if not sentences:
        raise UsageError(f"the text {text}: has no words. Write one sentence per line.")
    atomic_write(output, "\n".join(_arpa(kneser_ney(sentences, order))).encode())


def kneser_ney(sentences: list[list[str]], order: int) -> list[dict[Ngram, tuple[float, float]]]:
    """Interpolated Kneser-Ney (Chen and Goodman 1998, section 2.7): of each order, n-gram -> probability and back-off.

        p(w | h) = (a(h w) - D) / a(h) + D * distinct(h) / a(h) * p(w | h without its first word)

    where a counts the text for the longest n-grams and those after <s>, and the distinct words before for the others;
    distinct(h) counts the distinct words after h, and D = n1 / (n1 + 2 n2), with n1 and n2 the number of n-grams that
    are counted once and twice. Below the words lies the uniform distribution over them, </s> and <unk>.
    """
    counts = _counts(sentences, order)
    vocabulary = {word for sentence in sentences for word in sentence} | {END, UNK}
    probabilities: dict[Ngram, float] = {(): 1 / len(vocabulary)}
    levels: list[dict[Ngram, tuple[float, float]]] = []
    rests: dict[Ngram, float] = {}
    for level in counts:
        discount = _discount(level)
        sums, distinct = Counter[Ngram](), Counter[Ngram]()
        for ngram, count in level.items():
            sums[ngram[:-1]] += count
            distinct[ngram[:-1]] += 1
        rests |= {context: discount * distinct[context] / total for context, total in sums.items()}
        found = {
            ngram: (count - discount) / sums[ngram[:-1]] + rests[ngram[:-1]] * probabilities[ngram[1:]]
            for ngram, count in level.items()
        }
        if not levels:
            found[(UNK,)] = rests[()] * probabilities[()]
            found[(BEGIN,)] = 0.0  # never comes after anything
        probabilities |= found
        levels.append({ngram: (probability, 1.0) for ngram, probability in found.items()})
    return [
        {ngram: (probability, rests.get(ngram, 1.0)) for ngram, (probability, _) in level.items()} for level in levels
    ]


def _sentences(text: str, path: Path) -> Iterator[list[str]]:
    for number, line in enumerate(text_lines(text), 1):
        words = line.encode().split()  # at ASCII spaces alone, as ARPA files are read
        if reserved := {BEGIN, END, *UNKNOWN} & {word.decode() for word in words}:
            raise UsageError(f"the text {path}, line {number}: has the word {min(reserved)}. Remove it.")
        if words:
            yield [word.decode() for word in words]


def _counts(sentences: list[list[str]], order: int) -> list[Counter[Ngram]]:
    """Of each order the counts of `kneser_ney`; <s> alone is left out."""
    raw = [Counter[Ngram]() for _ in range(order)]
    for sentence in sentences:
        words = [BEGIN, *sentence, END]
        for length, counts in enumerate(raw, 1):
            counts.update(tuple(words[start : start + length]) for start in range(len(words) - length + 1))
    del raw[0][(BEGIN,)]
    adjusted = []
    for counts, longer in zip(raw, [*raw[1:], None], strict=True):
        if longer is not None:
            before = Counter(ngram[1:] for ngram in longer)
            counts = Counter({ngram: before[ngram] or count for ngram, count in counts.items()})
        adjusted.append(counts)
    return adjusted


def _discount(counts: Mapping[Ngram, int]) -> float:
    once, twice = (sum(count == number for count in counts.values()) for number in (1, 2))
    return once / (once + 2 * twice) if once and twice else DISCOUNT


def _arpa(levels: list[dict[Ngram, tuple[float, float]]]) -> Iterator[str]:
    yield "\\data\\"
    for order, level in enumerate(levels, 1):
        yield f"ngram {order}={len(level)}"
    for order, level in enumerate(levels, 1):
        yield f"\n\\{order}-grams:"
        for ngram, (probability, backoff) in level.items():
            log_prob = math.log10(probability) if probability else -99.0
            yield f"{log_prob:.7g}\t{' '.join(ngram)}" + (f"\t{math.log10(backoff):.7g}" if backoff < 1 else "")
    yield "\n\\end\\\n"
