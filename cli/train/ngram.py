"""`intaglio train ngram`."""

from __future__ import annotations

from pathlib import Path

import click

from intaglio.cli.options.choices import PATH
from intaglio.cli.printing.results import force_option, json_option, print_json, say
from intaglio.cli.running.command import verb

EPILOG = """\b
Examples:
  intaglio train ngram sentences.txt -o words.arpa
  intaglio train ngram sentences.txt -o words.arpa --order 4 --force
  intaglio run recogniser meeting.wav --language-model words.arpa
"""


@verb("ngram", epilog=EPILOG, short_help="Estimate a language model for a speech recogniser.")
@click.argument("text", type=PATH)
@click.option("-o", "--output", required=True, type=PATH, help="The ARPA file to write.")
@click.option("--order", default=3, help="Words of the longest n-grams.")
@force_option
@json_option
def ngram_command(text: Path, output: Path, order: int, force: bool, as_json: bool) -> None:
    """Estimate an n-gram model of the words in TEXT, UTF-8 with one sentence per line, by Kneser-Ney smoothing.

    The beam search of a speech recogniser weighs words with it. Write them as the recogniser does: in the same case,
    and without punctuation.
    """
    from intaglio.training import train_ngram

    result = train_ngram(text, output, order, force)
    if as_json:
        print_json(result)
    else:
        counts = ", ".join(f"{count:,}" for count in result.ngrams)
        say(f"{result.language_model}: {counts} n-grams of 1 to {len(result.ngrams)} words")
