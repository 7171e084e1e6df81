"""The prompts of a benchmark: those of a file, or pieces of running text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from intaglio.errors import UsageError
from intaglio.files.input_files import read_text, text_lines
from intaglio.runtime.generation.requests.prompts import read_examples
from intaglio.samples.sentences import sentences

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

PROMPTS = 64  # pieces of running text, each from another place
WORDS_PER_TOKEN = 0.75  # about, in English with the large vocabularies that servers run


def read(path: Path, option: str) -> list[str]:
    """Read JSON lines {"prompt": ...}, or one text per line. Raises `UsageError`, with the number of the line."""
    text = read_text(path, option)
    if text.lstrip().startswith("{"):
        return [example.prompt for example in read_examples(path, option)]
    lines = [line for line in text_lines(text) if line.strip()]
    if not lines:
        raise UsageError(f"{option} {path}: no prompts. Write one per line, or JSON lines with a prompt.")
    return lines


def of_tokens(tokenizer: Backend, tokens: int) -> list[str]:
    """Texts of `tokens` tokens, special tokens included; tokenized alone, a text may have one or two more or fewer."""
    special = len(tokenizer.encode("a").ids) - len(tokenizer.encode("a", add_special_tokens=False).ids)
    wanted = max(tokens - special, 1)
    needed, repeats = wanted + PROMPTS, 1
    text = running = " ".join(sentences())
    while len(offsets := tokenizer.encode(text, add_special_tokens=False).offsets) < needed:
        repeats = max(repeats + 1, repeats * needed // len(offsets))
        text = " ".join([running] * repeats)
    apart = (len(offsets) - wanted) // PROMPTS
    starts = range(0, apart * PROMPTS, apart)
    return [text[offsets[start][0] : offsets[start + wanted - 1][1]] for start in starts]


def of_words(tokens: int) -> list[str]:
    """Texts of about `tokens` tokens, for a server whose tokenizer is unknown."""
    words = " ".join(sentences()).split()
    count, apart = max(round(tokens * WORDS_PER_TOKEN), 1), len(words) // PROMPTS
    endless = words * (count // len(words) + 2)
    return [" ".join(endless[start : start + count]) for start in range(0, apart * PROMPTS, apart)]
