"""`intaglio run`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from intaglio.cli.options.choices import BUNDLE, PATH
from intaglio.cli.options.runtime import target_option, threads_option
from intaglio.cli.options.text_lines import lines
from intaglio.cli.printing.printable import printable
from intaglio.cli.printing.results import json_option, print_json, print_table, terminal_width
from intaglio.cli.run.documents import documents_of, in_order, pairs_of
from intaglio.cli.run.files import files_given, record_of
from intaglio.cli.run.images import ImageFlags, image_flags
from intaglio.cli.run.spans import print_spans, span_flags
from intaglio.cli.run.speech import SpeechFlags, speech_flags, transcribe
from intaglio.cli.running.command import section, verb
from intaglio.errors import ContextLengthError, UsageError

if TYPE_CHECKING:
    from intaglio.bundle.modality_record import ModalityRecord
    from intaglio.runtime.modalities.modality import RunOptions
    from intaglio.runtime.text.similarities import Similarity
    from intaglio.runtime.text.span_options import SpanOptions
    from intaglio.runtime.text.tasks import Ran

EPILOG = """\b
Examples:
  intaglio run minilm "A sentence." "Another one."
  intaglio run minilm --input sentences.txt --json > embeddings.jsonl
  cat sentences.txt | intaglio run minilm
  intaglio run minilm --similarity "A cat sits." "A kitten rests." "Stocks fell."
  intaglio run reranker --query "Who wrote Emma?" "Jane Austen wrote it." "Bees make honey."
  intaglio run reranker --input queries.jsonl --json
  intaglio run ner "Ada Lovelace lived in London." --aggregation first
  intaglio run qa --query "Where did Ada live?" "Ada Lovelace lived in London."
  intaglio run bert-fill-mask "Paris is the [MASK] of France."
  intaglio run vit photo.png another.jpg
  intaglio run dinov2 --input photos --json > embeddings.jsonl
  intaglio run clip photo.png --labels "a cat, a dog"
  intaglio run squeezeformer meeting.wav call.flac
  intaglio run squeezeformer meeting.wav --beam 50 --language-model words.arpa --json
  intaglio run whisper interview.flac --language fr --timestamps
  intaglio run whisper interview.flac --word-timestamps --json
  intaglio run whisper interview.flac --beam 5
  intaglio run whisper interview.flac --prompt "Ada Lovelace, Charles Babbage"
  arecord -q -t raw -f S16_LE -r 16000 | intaglio run squeezeformer --stream
"""

MATRIX = 8  # up to this many texts are shown as a matrix, which fits 80 columns; for more, the most similar pairs
COLUMN = 8  # characters of a column of the matrix
PAIRS = 20
HEADINGS = {
    "cosine": "Cosine similarity",
    "dot": "Dot products",
    "euclidean": "Minus Euclidean distance",
    "manhattan": "Minus Manhattan distance",
}


@verb("run", epilog=EPILOG)
@click.argument("bundle", type=BUNDLE)
@click.argument("texts", nargs=-1, metavar="[TEXTS, IMAGES or RECORDINGS]...")
@click.option(
    "--input",
    "file",
    type=PATH,
    help="UTF-8 file with one text per line, - for stdin; a .jsonl file of queries with documents; an image or a "
    "folder of images; a folder or list (.tsv, .jsonl) of recordings.",
)
@target_option()
@threads_option()
@click.option("--batch-size", default=32, help="Texts per run, or images of the same size.")
@section("Texts")
@click.option("--truncate", is_flag=True, help="Truncate texts that are longer than the model's maximum.")
@click.option("--top", default=5, help="Number of words to list for a blank, or of answers.")
@click.option("--prompt-name", help="Name of the model's prompt to put before each text.  [default: the model's]")
@click.option("--query", help="Question about each text, or a text that a reranker scores each with.")
@click.option("--truncate-dim", type=int, help="The first numbers of an embedding to keep.  [default: all]")
@click.option("--similarity", "compare", is_flag=True, help="Show the similarity of the texts' embeddings.")
@span_flags
@image_flags
@speech_flags
@json_option
def run_command(
    bundle: Path,
    texts: tuple[str, ...],
    file: Path | None,
    target: str,
    threads: int | None,
    batch_size: int,
    truncate: bool,
    top: int,
    prompt_name: str | None,
    query: str | None,
    truncate_dim: int | None,
    compare: bool,
    spans: SpanOptions,
    images: ImageFlags,
    speech: SpeechFlags,
    as_json: bool,
) -> None:
    """Run BUNDLE on TEXTS, a file, or standard input: embed, classify, or fill blanks, depending on the bundle's task.

    A model that reads images takes IMAGES (PNG, JPEG, WebP, GIF, TIFF, BMP, AVIF), and prints their classes or
    embeddings; CLIP and SigLIP also tell which of --labels an image shows.

    A speech recogniser takes RECORDINGS (WAV, FLAC, OGG), of any length, and prints their transcripts; with --json
    also the start and end of each word and token. Whisper prints segments with --timestamps, words with
    --word-timestamps, and translates with --task translate.

    A file has one text per line; blank lines are texts too. Prints one line per text; with --json the full result,
    one object per line, of a ColBERT model the vector of each token. A model of spans prints a table of them for each
    text, one of answers the answers to --query. For a text with several blanks, words are listed for the first one.
    With --similarity up to a thousand texts are compared with each other instead; with --json that is one object.
    With --query, or a file of queries, a reranker's texts are sorted by relevance; with --json they keep their order.
    """
    from intaglio.runtime.text.run_texts import AHEAD, run
    from intaglio.runtime.text.similarities import similarity

    record = record_of(bundle)
    modality = "text" if record is None else record.modality
    if modality != "audio":
        speech.refuse(bundle)
    if modality != "image":
        images.refuse(bundle)
    if record is not None:
        from intaglio.runtime.modalities.modality import RunOptions

        if compare:
            raise UsageError(
                f"--similarity compares embeddings of texts, and the bundle takes {record.items}. Leave it out."
            )
        others = query, images.texts, images.embed_texts, threads, spans, truncate_dim
        options = RunOptions(target, batch_size, truncate, top, prompt_name, None, *others)
        options.check_no_texts(record.items)
        if modality == "audio":
            transcribe(bundle, record, texts, file, target, threads, speech, as_json)
        else:
            _run_files(bundle, record, texts, file, options, as_json)
        return
    if compare and query is not None:
        raise UsageError("--query scores texts, and --similarity compares embeddings. Leave one of them out.")
    if compare:
        with _naming_truncate():
            read = _texts(texts, file)
            sizes = batch_size, truncate, threads
            _show_similarity(similarity(bundle, read, target, *sizes, prompt_name, truncate_dim), as_json)
        return
    lines = documents_of(texts, file, query)
    pairs = _texts(texts, file) if lines is None else pairs_of(lines)
    ahead = AHEAD if file is not None and file.is_file() else None  # a pipe may be slow
    with _naming_truncate():
        results = run(
            bundle, pairs, target, batch_size, truncate, top, threads, prompt_name, query, spans, truncate_dim, ahead
        )
        if not as_json:
            results = in_order(results, query, lines)
        _print(results, as_json)


def _run_files(
    bundle: Path, record: ModalityRecord, inputs: tuple[str, ...], file: Path | None, options: RunOptions, as_json: bool
) -> None:
    """Run a bundle on files, or on texts that are embedded beside images."""
    from intaglio.bundle.bundle import Bundle
    from intaglio.runtime.modalities.table import MODALITIES

    given = _texts(inputs, file) if options.embed_texts else files_given(record, inputs, file)
    with _naming_truncate():
        results = MODALITIES[record.modality].run(Bundle.open(bundle), given, options)
        _print(cast("Iterator[Ran]", results), as_json, file is not None or len(inputs) > 1)


@contextmanager
def _naming_truncate() -> Iterator[None]:
    """Name the option that truncates in errors about long texts."""
    try:
        yield
    except ContextLengthError as error:
        raise UsageError(f"{error} Or truncate it with --truncate.") from error


def _print(results: Iterable[Ran], as_json: bool, several_files: bool = False) -> None:
    for result in results:
        if as_json:
            print_json(result)
        elif result.spans is not None or result.answers is not None:
            print_spans(result)
        elif several_files and result.label is not None:
            click.echo(f"{printable(result.text)}: {_line(result)}")
        else:
            click.echo(_line(result))


def _texts(texts: tuple[str, ...], file: Path | None) -> Iterable[str]:
    if texts and file:
        raise UsageError("texts were given both as arguments and by --input. Use one of the two.")
    if texts:
        return texts
    if file is not None and str(file) != "-":
        return lines(file)
    if sys.stdin is None or (file is None and sys.stdin.isatty()):
        raise UsageError("no text. Give texts as arguments, a file with --input FILE, or pipe them in.")
    return lines(None)


def _line(result: Ran) -> str:
    if result.embedding is not None:
        shown = ", ".join(f"{number:+.4f}" for number in result.embedding[:6])
        return f"[{shown}, … {len(result.embedding)} numbers]  {result.text}"
    if result.token_embeddings is not None:
        count, width = result.token_embeddings.shape
        return printable(f"[{count} vectors of {width} numbers]  {result.text}")
    if result.weights is not None:
        shown = ", ".join(f"{token} {weight:.3f}" for token, weight in list(result.weights.items())[:8])
        return printable(f"[{shown}, … {len(result.weights)} tokens]  {result.text}")
    if result.relevance is not None:
        return printable(f"{result.relevance:+8.4f}  {result.text}")
    scores = ", ".join(f"{name} {score:.3f}" for name, score in list((result.scores or {}).items())[:5])
    return printable(f"{result.label}  ({scores})")  # labels are of the bundle


def _show_similarity(found: Similarity, as_json: bool) -> None:
    """Print the matrix for a few texts, or the most similar pairs of many."""
    if as_json:
        print_json(found)
    elif len(found.texts) <= MATRIX and COLUMN * (len(found.texts) + 1) <= (terminal_width() or 80):
        numbers = [str(number) for number in range(1, len(found.texts) + 1)]
        print_table("Texts", ["", ""], list(zip(numbers, found.texts, strict=True)))
        rows = [
            [number, *(f"{value:.3f}" for value in row)] for number, row in zip(numbers, found.similarity, strict=True)
        ]
        print_table(HEADINGS[found.function], ["", *numbers], rows)
    else:
        rows = [[f"{value:.3f}", first, second] for value, first, second in islice(found.pairs(), PAIRS)]
        print_table(f"Most similar pairs of {len(found.texts)} texts", [found.function, "text", "text"], rows)
