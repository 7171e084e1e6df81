"""`intaglio generate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from intaglio.cli import ERROR
from intaglio.cli.output import json_option, print_json, print_table, size
from intaglio.errors import UsageError
from intaglio.files import read_text

if TYPE_CHECKING:
    from intaglio.runtime.generate import Prompt, TextGenerator
    from intaglio.runtime.text_run import BatchRun, Generated, TextRun
    from intaglio.runtime.trace import Passage

EPILOG = """\b
Examples:
  intaglio generate gpt2 "Once upon a time"
  intaglio generate gpt2 --file story.txt --temperature 0.8 --top-p 0.95 --seed 1 -n 200
  git diff | intaglio generate coder --json > summary.json
  intaglio generate gpt2 --data prompts.jsonl --batch 8 --json > texts.jsonl
  intaglio generate llama --chat "Why is the sky blue?" --system "Answer in one sentence."
  intaglio generate llama --messages talk.json --stop "###"
  intaglio generate llama --draft small-llama --strategy bild --fallback 0.6 --rollback 2 --trace "Once upon a time"
  intaglio generate llama --draft small-llama --strategy speculative --file questions.txt
  intaglio generate llama-exit --early-exit --strategy bild "Once upon a time"
  intaglio generate llama-exits --strategy calm --saturation 0.9 --decay 4 "Once upon a time"
"""

# What a terminal would obey instead of showing it: control characters but tab and line feed.
CONTROLS = {number: "\N{REPLACEMENT CHARACTER}" for number in (*range(32), *range(127, 160)) if number not in (9, 10)}


@click.command("generate", epilog=EPILOG)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("prompts", nargs=-1)
@click.option(
    "--file", "files", multiple=True, type=click.Path(path_type=Path), help="A UTF-8 file as one prompt; - for stdin."
)
@click.option("--data", type=click.Path(path_type=Path), help='Prompts as JSON lines, {"prompt": "..."} each.')
@click.option("--chat", is_flag=True, help="The prompts are a user's messages: put them into the chat template.")
@click.option("--system", help="A system message before each of them. Implies --chat.")
@click.option(
    "--messages", type=click.Path(path_type=Path), help='A conversation to answer: JSON [{"role":..., "content":...}].'
)
@click.option(
    "--strategy",
    help="greedy, sample, bild, speculative, ngram, hidden-transfer, medusa, calm, auto.  [default: greedy, or sample]",
)
@click.option("--draft", type=click.Path(path_type=Path), help="The smaller decoder, for bild, speculative, auto.")
@click.option("--early-exit", is_flag=True, help="Instead of it, the model's own first blocks, trained for that.")
@click.option("--fallback", type=float, help="bild: the large model's turn is below this probability.  [default: 0.5]")
@click.option(
    "--rollback", type=float, help="bild: a token is taken back beyond this distance, in nats; or inf.  [default: 2]"
)
@click.option("--max-draft", type=int, help="bild: tokens between two reviews of the large model.  [default: 10]")
@click.option(
    "--window",
    type=int,
    help="speculative, ngram: tokens drafted at a time.  [default: adaptive; at most 10]",
)
@click.option(
    "--ngram",
    type=int,
    help="ngram, hidden-transfer, medusa: last tokens to look for in the text before.  [default: 6]",
)
@click.option("--tree", type=int, help="hidden-transfer, medusa: tokens drafted at a time.  [default: 8]")
@click.option("--least", type=float, help="ngram, hidden-transfer, medusa: chance of what is tried.  [default: 0.05]")
@click.option("--origins", type=int, help="hidden-transfer, medusa: tokens to draft after at a time.  [default: 1]")
@click.option("--typical", type=float, help="hidden-transfer, medusa: take tokens as likely as this, too.")
@click.option("--saturation", type=float, help="calm: how alike a state stays for its token to leave.  [default: 0.9]")
@click.option("--decay", type=float, help="calm: how fast that becomes less strict in a text.  [default: 4]")
@click.option("-n", "--max-new-tokens", default=256, show_default=True, help="Tokens to write at most.")
@click.option("--temperature", type=float, help="Divides the logits: below 1 is safer, above 1 bolder.  [default: 1.0]")
@click.option("--top-k", type=int, help="Sample from the k most probable tokens only.")
@click.option("--top-p", type=float, help="Sample from the fewest tokens whose probabilities add up to it.")
@click.option("--min-p", type=float, help="Sample from tokens of at least this part of the highest probability.")
@click.option("--repetition-penalty", default=1.0, show_default=True, help="Above 1: make tokens that occurred rarer.")
@click.option("--seed", type=int, help="The same seed gives the same text, but with auto.")
@click.option("--stop", multiple=True, help="End the text before this string. May be given several times.")
@click.option("--ignore-eos", is_flag=True, help="Go on after the token that ends a text.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Prompts to go on with at a time.")
@click.option("--trace", is_flag=True, help="Show who wrote what, in colours, once a text is written.")
@click.option("--work", is_flag=True, help="Tell the operations and bytes of a token, and those without drafts.")
@click.option("--target", default="ort-cpu", show_default=True, help="What runs it: ort-cpu, ort-cuda, tensorrt, ...")
@click.option("--threads", type=click.IntRange(1), help="Processor threads, for ort-cpu.  [default: all]")
@json_option
def generate_command(
    bundle: Path,
    prompts: tuple[str, ...],
    files: tuple[Path, ...],
    data: Path | None,
    chat: bool,
    system: str | None,
    messages: Path | None,
    trace: bool,
    work: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Write the text that follows each of PROMPTS, those in a file, standard input, or a conversation.

    One text appears as it is written, its speed after it on standard error. Texts of a batch, with --trace, and with
    --json as one object per prompt, appear once they are written. Ctrl-C ends the text and keeps what there is. With
    --trace the text is green where the small model wrote it, or what else drafts, blue where the large one did, and
    struck through where it was taken back; in a pipe, {+large+} and [-taken back-]. With --work a table comes last, of
    all texts; with --json it is one more object.
    """
    from intaglio.progress import step
    from intaglio.runtime.generate import TextGenerator
    from intaglio.runtime.strategies import Auto

    if work and options["strategy"] == "calm":
        raise UsageError("--work counts whole passes, of which strategy 'calm' leaves blocks out. Leave --work out.")
    wanted = _prompts(prompts, files, data, messages, chat or system is not None, system)
    with step("opening the model"):
        generator = TextGenerator(bundle, **options)
    with generator:
        if len(wanted) > 1:
            generator.check(wanted, lambda number: f"prompt {number} of {len(wanted)}")
        if isinstance(generator.method, Auto):
            click.echo(generator.method.forecast(), err=True)
        done: list[Generated] = []
        for start in range(0, len(wanted), generator.batch):
            if start and not as_json:
                click.echo()
            batch = generator.write_batch(wanted[start : start + generator.batch])
            shown = _write(batch, live=not as_json and not trace)
            results = [run.result() for run in batch.texts]
            for number, (run, result) in enumerate(zip(batch.texts, results, strict=True)):
                if number and not as_json:
                    click.echo()
                _tell(generator, run, result, shown, as_json, trace)
            done += results
            if any(result.stopped == "interrupted" for result in results):
                break
    if work and any(result.tokens for result in done):
        _tell_work(bundle, options["draft"], done, as_json)
    return ERROR if any(result.stopped == "interrupted" for result in done) else 0


def _write(batch: BatchRun, live: bool) -> int:
    """Write texts; if `live`, show one that is alone as it is written. Returns the number of characters shown.

    An interrupt is their end.
    """
    shown = 0
    try:
        for _, piece in batch:
            if live and len(batch.texts) == 1:
                show(piece)
                shown += len(piece)
    except KeyboardInterrupt:
        pass
    return shown


def _tell(generator: TextGenerator, run: TextRun, result: Generated, shown: int, as_json: bool, trace: bool) -> None:
    """Print a text, of which `shown` characters stand there already, and how it came about."""
    from intaglio.runtime.trace import passages

    if as_json:
        print_json(result)
        return
    if trace:
        for passage in passages(generator.tokenizer, run.prompt, result.trace, result.text):
            show_passage(passage)
    else:
        show(result.text[shown:])
    click.echo()
    click.echo(
        f"{len(result.tokens)} tokens, {result.tokens_per_second:.1f} a second, after a prompt of "
        f"{result.prompt_tokens} in {result.prompt_seconds:.2f} s. {ENDS[result.stopped]}",
        err=True,
    )
    if result.calls.small or result.acceptance is not None:
        click.echo(
            f"{result.calls.small} calls of the small model ({result.seconds_in.small:.2f} s), {result.calls.large} of "
            f"the large one ({result.seconds_in.large:.2f} s); {result.accepted} of "
            f"{result.accepted + result.rolled_back} drafted tokens kept.",
            err=True,
        )
    if result.blocks is not None:
        click.echo(f"A token went through {result.blocks:.1f} blocks of the model on average.", err=True)


def _tell_work(bundle: Path, draft: Path | None, results: list[Generated], as_json: bool) -> None:
    """Print what all the texts took, and what the large model alone would have taken, as figure C.2 of the thesis."""
    from intaglio.bundle import Bundle
    from intaglio.validate.decoding_work import compared_work

    compared = compared_work(Bundle.open(bundle), Bundle.open(draft) if draft else None)(results)
    if as_json:
        print_json(compared)
        return
    run, alone = compared.run, compared.alone
    rows = [
        ("this run", run.operations, size(int(run.bytes)), run.intensity),
        ("the model alone", alone.operations, size(int(alone.bytes)), alone.intensity),
        ("in units of it", *(getattr(run, name) / getattr(alone, name) for name in run.__struct_fields__)),
    ]
    print_table(
        "Work of a token, the prompts' reading included", ["", "operations", "bytes", "operations a byte"], rows
    )


def show(piece: str) -> None:
    """Print a piece of text at once; on a terminal without the characters that it would obey."""
    # A pipe gets every character: with `color`, click takes no escape sequences out.
    click.echo(piece.translate(CONTROLS) if sys.stdout.isatty() else piece, nl=False, color=True)


def show_passage(passage: Passage) -> None:
    """Print text in the colour of who wrote it, or into a pipe between the marks of a word diff."""
    if not sys.stdout.isatty():
        marks = ("[-", "-]") if passage.rolled_back else ("{+", "+}") if passage.by == "large" else ("", "")
        show(passage.text.join(marks))
        return
    text, taken_back = passage.text.translate(CONTROLS), passage.rolled_back or None
    click.secho(text, nl=False, fg=COLOURS[passage.by], strikethrough=taken_back, dim=taken_back)


COLOURS = {"small": "green", "large": "blue"}

# Why a text ended -> what to tell about it.
ENDS = {
    "eos": "The model ended the text.",
    "stop": "It came to a stop string.",
    "length": "More with --max-new-tokens.",
    "capacity": "The model takes no more tokens.",
    "interrupted": "Interrupted.",
}


def _prompts(
    texts: tuple[str, ...],
    files: tuple[Path, ...],
    data: Path | None,
    messages: Path | None,
    chat: bool,
    system: str | None,
) -> list[Prompt]:
    """What to go on with: texts, or conversations. Raises `UsageError` where there is none, or several kinds."""
    from intaglio.runtime.chat import Message, read_messages
    from intaglio.runtime.prompts import read_examples

    kinds = (("as arguments", texts), ("with --file", files), ("with --data", data), ("with --messages", messages))
    given = [name for name, value in kinds if value]
    if len(given) > 1:
        raise UsageError(f"prompts were given both {given[0]} and {given[1]}. Give one of the two.")
    if messages is not None:
        if chat:
            raise UsageError("--messages is a whole conversation: leave out --chat and --system.")
        return [read_messages(messages, "--messages")]
    if texts:
        plain = list(texts)
    elif data is not None:
        plain = [example.prompt for example in read_examples(data, "--data")]
    else:
        plain = [_read(file) for file in files or (Path("-"),)]
    if not chat:
        return list(plain)
    before = [Message("system", system)] if system is not None else []
    return [[*before, Message("user", text)] for text in plain]


def _read(file: Path) -> str:
    """A file, or standard input, as one prompt, without the line feed that ends its last line."""
    if str(file) != "-":
        return read_text(file, "--file").removesuffix("\n")
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("no prompt. Give it as an argument, with --file FILE, --messages FILE, or pipe it in.")
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input: not UTF-8 text (byte {error.start}). Convert it first.") from error
