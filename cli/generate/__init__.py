"""`intaglio generate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from intaglio import interrupts
from intaglio.cli.generate.beams import SEARCH, beam_options, check_beams
from intaglio.cli.options.choices import BUNDLE, PATH
from intaglio.cli.options.generation import generation_options
from intaglio.cli.options.runtime import RUNTIME
from intaglio.cli.options.text_lines import standard_input
from intaglio.cli.printing.generated_text import ENDS, report_speed, show, show_trace
from intaglio.cli.printing.results import json_option, notice, print_json, print_table, size
from intaglio.cli.running.command import OUTPUT, section, verb
from intaglio.errors import UsageError
from intaglio.files.input_files import read_text

if TYPE_CHECKING:
    from intaglio.bundle.bundle import Bundle
    from intaglio.runtime.generation.generate import TextGenerator
    from intaglio.runtime.generation.requests.prompt_encoder import Prompt
    from intaglio.runtime.generation.scheduling.generated import Generated
    from intaglio.runtime.generation.text_run import TextRun

Item = TypeVar("Item")

EPILOG = """\b
Examples:
  intaglio generate gpt2 "Once upon a time"
  intaglio generate gpt2 --file story.txt --temperature 0.8 --top-p 0.95 --seed 1 -n 200
  git diff | intaglio generate coder --json > summary.json
  intaglio generate gpt2 --data prompts.jsonl --batch 8 --json > texts.jsonl
  intaglio generate llama --chat "Why is the sky blue?" --system "Answer in one sentence."
  intaglio generate llama --messages talk.json --stop "###"
  intaglio generate smolvlm --image photo.jpg --chat "What is in the picture?"
  intaglio generate smolvlm --image left.png --image right.png "<image> and <image> show"
  intaglio generate llama --adapter sql=./sql-lora "List the customers of 2024:"
  intaglio generate llama --draft small-llama --strategy bild --fallback 0.6 --rollback 2 --trace "Once upon a time"
  intaglio generate llama --draft small-llama --file questions.txt
  intaglio generate llama --draft small-llama --strategy speculative --temperature 0.8 --file questions.txt
  intaglio generate llama --chat "Name a city and its country." --schema city.json
  intaglio generate llama --chat "Is the sky blue?" --regex "Yes|No"
  intaglio generate llama-exit --early-exit --strategy bild "Once upon a time"
  intaglio generate nllb --target-language fra_Latn --beams 4 "The cat sat on the mat."
  intaglio generate llama-exits --strategy calm --saturation 0.9 --decay 4 "Once upon a time"
"""


@verb("generate", epilog=EPILOG)
@click.argument("bundle", type=BUNDLE)
@click.argument("prompts", nargs=-1)
@section("Prompts")
@click.option(
    "--file", "files", multiple=True, type=PATH, help="UTF-8 file that is one prompt; - for stdin. Can be repeated."
)
@click.option("--data", type=PATH, help='Prompts as JSON lines: {"prompt": "..."}.')
@click.option("--chat", is_flag=True, help="Send each prompt as a user message, through the chat template.")
@click.option("--system", help="System message before each prompt. Implies --chat.")
@click.option("--messages", type=PATH, help='Conversation to answer, as JSON: [{"role": ..., "content": ...}].')
@click.option(
    "--image",
    multiple=True,
    type=PATH,
    help="Image in each prompt, for a model that reads them: before a message, or at <image>. Can be repeated.",
)
@click.option("--source-language", metavar="CODE", help="Language of the prompts, for a model that translates.")
@click.option("--target-language", metavar="CODE", help="Language to translate into, such as fra_Latn.")
@generation_options
@beam_options
@section("Structure of the text")
@click.option("--schema", type=PATH, help="Generate JSON that is valid for this JSON schema.")
@click.option("--grammar", type=PATH, help="Generate text of this grammar, in Lark's syntax.")
@click.option("--regex", help="Generate text that matches this regular expression.")
@section(RUNTIME)
@click.option("--batch", type=click.IntRange(1), default=1, help="Prompts in a batch.")
@section(OUTPUT)
@click.option("--trace", is_flag=True, help="Show each finished text in colours, by the model that wrote it.")
@click.option("--work", is_flag=True, help="Report operations and bytes per token, with and without drafts.")
@json_option
def generate_command(
    bundle: Path,
    prompts: tuple[str, ...],
    files: tuple[Path, ...],
    data: Path | None,
    chat: bool,
    system: str | None,
    messages: Path | None,
    image: tuple[Path, ...],
    schema: Path | None,
    grammar: Path | None,
    trace: bool,
    work: bool,
    beams: int | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Generate text after each of PROMPTS, or after the prompts of a file, standard input, or a conversation.

    Text is streamed, and its speed is printed on standard error. With --batch, --trace or --json (one object per
    prompt) each output is printed when it is finished. Ctrl-C stops generation and keeps the partial output.
    --trace shows drafted tokens in green, tokens of the large model in blue, and rejected drafts struck through; in a
    pipe, {+large+} and [-rejected-]. With --draft or --early-exit alone, the number of draft tokens adapts to the
    measured speed (strategy auto). --work ends with a table for all texts; with --json it is one more object.
    With --beams the text is the most likely one that beam search finds, as in transformers.
    With --schema, --grammar or --regex only matching text can be generated; if it stops at --max-new-tokens, it is cut
    off there.
    """
    from intaglio.display.progress import step
    from intaglio.runtime.generation.generate import TextGenerator
    from intaglio.runtime.generation.requests.image_prompts import with_images
    from intaglio.runtime.strategies import Auto

    if work and options["strategy"] == "calm":
        raise UsageError("--work counts whole passes, but strategy 'calm' skips blocks. Leave --work out.")
    search = {name: options.pop(name) for name in SEARCH}
    check_beams(beams)
    wanted = list(with_images(_prompts(prompts, files, data, messages, chat or system is not None, system), image))
    if beams is not None:
        return _search(bundle, wanted, {"beams": beams, **search}, options, as_json)
    options |= {
        "schema": None if schema is None else read_text(schema, "--schema"),
        "grammar": None if grammar is None else read_text(grammar, "--grammar"),
    }
    with step("opening the model"):
        generator = TextGenerator(bundle, **options)
    with generator:
        if len(wanted) > 1:
            generator.check(wanted, lambda number: f"prompt {number} of {len(wanted)}")
        if isinstance(generator.method, Auto):
            notice(generator.method.forecast())
        done: list[Generated] = []
        for run, shown in _write(generator, wanted, not as_json, trace):
            done.append(run.result())
            _print_text(generator, run, done[-1], shown, as_json, trace)
    if work and any(result.tokens for result in done):
        _print_work(generator.bundle, generator.draft_bundle, done, as_json)
    return interrupts.exit_code() if any(result.stopped == "interrupted" for result in done) else 0


def _search(
    bundle: Path, prompts: Sequence[Prompt], search: dict[str, Any], options: dict[str, Any], as_json: bool
) -> int:
    """Write the texts that beam search finds."""
    from intaglio.runtime.generation.beam_search import beam_search
    from intaglio.runtime.sampling.beams import BeamOptions

    given = BeamOptions(max_new_tokens=options["max_new_tokens"], **{k: v for k, v in search.items() if v is not None})
    names = ("batch", "target", "threads", "source_language", "target_language")
    for number, found in enumerate(beam_search(bundle, prompts, given, **{name: options[name] for name in names})):
        if as_json:
            print_json(found)
            continue
        if number:
            click.echo()
        show(found.text)
        click.echo()
        notice(f"{len(found.tokens)} tokens, score {found.score:.4f}. {ENDS[found.stopped]}")
    return 0


def _write(
    generator: TextGenerator, prompts: Sequence[Prompt], plain: bool, trace: bool
) -> Iterator[tuple[TextRun, int]]:
    """Generate the texts; yield each in order, with the number of its characters that were printed already.

    Characters are streamed if the output is `plain`, without trace, and one text is written at a time. An interrupt
    ends the texts in progress.
    """
    if len(prompts) > 1 and generator.batch > 1:
        runs = generator.generate_many(prompts)
        for number, run in enumerate(chain(_until_interrupted(runs), runs.begun)):
            if number and plain:
                click.echo()
            yield run, 0
        return
    for number, prompt in enumerate(prompts):
        if number and plain:
            click.echo()
        run, shown = generator.write(prompt), 0
        with suppress(KeyboardInterrupt):
            for piece in run:
                if plain and not trace:
                    show(piece)
                    shown += len(piece)
        yield run, shown
        if run.result().stopped == "interrupted":
            return


def _until_interrupted(items: Iterable[Item]) -> Iterator[Item]:
    with suppress(KeyboardInterrupt):
        yield from items


def _print_text(
    generator: TextGenerator, run: TextRun, result: Generated, shown: int, as_json: bool, trace: bool
) -> None:
    """Print a text, `shown` characters of which were printed already, and its statistics."""
    if as_json:
        print_json(result)
        return
    if trace:
        show_trace(generator, run, result)
    else:
        show(result.text[shown:])
    click.echo()
    report_speed(generator, result)


def _print_work(bundle: Bundle, draft: Bundle | None, results: list[Generated], as_json: bool) -> None:
    """Print the work of all texts and that of the large model alone, as figure C.2 of the thesis."""
    from intaglio.validation.roofline.decoding_work import compared_work

    compared = compared_work(bundle, draft)(results)
    if as_json:
        print_json(compared)
        return
    run, alone = compared.run, compared.alone
    rows = [
        ("this run", run.operations, size(int(run.bytes)), run.intensity),
        ("the model alone", alone.operations, size(int(alone.bytes)), alone.intensity),
        ("ratio", *(getattr(run, name) / getattr(alone, name) for name in run.__struct_fields__)),
    ]
    print_table("Work per token, prefill included", ["", "operations", "bytes", "operations per byte"], rows)


def _prompts(
    texts: tuple[str, ...],
    files: tuple[Path, ...],
    data: Path | None,
    messages: Path | None,
    chat: bool,
    system: str | None,
) -> list[Prompt]:
    """Collect the prompts: texts or conversations. Raises `UsageError` where there is none, or several kinds."""
    from intaglio.runtime.generation.requests.chat import read_messages
    from intaglio.runtime.generation.requests.message import Message
    from intaglio.runtime.generation.requests.prompts import read_examples

    kinds = (("as arguments", texts), ("with --file", files), ("with --data", data), ("with --messages", messages))
    given = [name for name, value in kinds if value]
    if len(given) > 1:
        raise UsageError(f"prompts were given both {given[0]} and {given[1]}. Use one of the two.")
    if messages is not None:
        if chat:
            raise UsageError("--messages is a whole conversation: leave out --chat and --system.")
        return [read_messages(messages, "--messages")]
    if texts:
        plain = list(texts)
    elif data is not None:
        plain = [example.prompt for example in read_examples(data, "--data")]
    else:
        plain = [read_prompt(file) for file in files or (Path("-"),)]
    if not chat:
        return list(plain)
    before = [Message("system", system)] if system is not None else []
    return [[*before, Message("user", text)] for text in plain]


def read_prompt(file: Path) -> str:
    """Read a file, or standard input, as one prompt, without the final line feed."""
    if str(file) != "-":
        return read_text(file, "--file").removesuffix("\n")
    missing = "no prompt. Give it as an argument, with --file FILE, --messages FILE, or pipe it in."
    return standard_input(missing).removesuffix("\n")
