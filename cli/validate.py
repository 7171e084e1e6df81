"""`intaglio validate`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from intaglio.cli.options.bounds import bound_options
from intaglio.cli.options.choices import BUNDLE, BUNDLE_OR_NAME, PATH, OneOf
from intaglio.cli.options.executor import executor_option
from intaglio.cli.options.runtime import cache_bits_option, target_option, threads_option
from intaglio.cli.printing.printable import printable
from intaglio.cli.printing.results import json_option, print_json, print_table, say, shortened, verdict
from intaglio.cli.printing.rows import summed_up
from intaglio.cli.run.speech import SPEECH, beam_options
from intaglio.cli.running.command import OUTPUT, section, verb
from intaglio.display.verbosity import is_quiet
from intaglio.errors import UsageError
from intaglio.targets import TARGETS

if TYPE_CHECKING:
    from intaglio.validation.reports.results import Validated

BROKEN = 3  # violated bounds that are printed, without --verbose
ADVISED = 5  # recipes that are named

EPILOG = """\b
Examples:
  intaglio validate minilm
  intaglio validate minilm-fp16 --against minilm --bisect
  intaglio validate minilm-int8 --against minilm --min-cosine 0.98
  intaglio validate minilm --data sentences.txt --report reports/
  intaglio validate gpt2-3bit --perplexity novel.txt --against gpt2 --max-perplexity-rise 2
  intaglio validate gpt2-3bit --perplexity novel.txt --executor processes:4
  intaglio validate t5-3bit --perplexity pairs.jsonl --against t5
  intaglio validate squeezeformer-int8 --wer test.tsv --against squeezeformer
\b
The passes of the bundle decide what is judged. For the same computation (export, float16, inlined): every value of
every output. For an approximation (8, 4, 3 bits, integers, pruning): the quality at the task. Names for --bound:
  relative, max_abs, min_cosine, layer                 values of any model
  mean_cosine, min_cosine, rank_correlation            embeddings (the latter: rerankers)
  label_agreement, score_error                         classes, regression
  kl_divergence, perplexity_rise (percent), same_top   distributions
  token_errors, same_top                               speech: the tokens
  wer, cer (percent)                                   recordings
  wer_rise, cer_rise (points, with --against)          recordings
"""


@verb("validate", epilog=EPILOG)
@click.argument("bundle", type=BUNDLE)
@click.option(
    "--against",
    type=BUNDLE_OR_NAME,
    help="pytorch (the source checkpoint, downloaded if necessary), its folder, reference (ONNX's reference "
    "evaluator), or a bundle.",
)
@click.option("--data", type=PATH, help="UTF-8 file with one sentence per line, or .npz arrays by input name.")
@target_option(kind=OneOf([*TARGETS, "reference"]), also=", or reference")
@threads_option()
@executor_option
@click.option("--bisect", is_flag=True, help="Find the first layer beyond its bound.")
@click.option("--samples", default=64, help="Number of sentences to run.")
@click.option("--batch-size", default=8, help="Sentences per run.")
@section("Bounds")
@bound_options
@click.option("--max-perplexity-rise", type=float, metavar="PERCENT", help="Maximum rise of the perplexity.")
@section("Language models")
@click.option(
    "--perplexity",
    type=PATH,
    help='Score the model on this UTF-8 text; for an encoder-decoder, JSON lines {"prompt": ..., "reference": ...}.',
)
@click.option("--context", type=int, help="Tokens per window of the text.  [default: 1024, or the model's maximum]")
@click.option("--stride", type=int, help="Tokens from one window to the next.  [default: half the context]")
@cache_bits_option()
@section(SPEECH)
@click.option(
    "--wer",
    type=PATH,
    help="Measure word errors on these recordings: .tsv (recording, tab, text) or .jsonl (audio_filepath, text).",
)
@beam_options
@section(OUTPUT)
@click.option("--report", type=PATH, help="Directory for the reports.  [default: reports/ in the bundle]")
@json_option
def validate_command(bundle: Path, as_json: bool, **options: Any) -> int:
    """Compare BUNDLE with its source model, another bundle or another runtime, on real sentences.

    Writes a JSON and an HTML report. Exit code 1 when a bound is exceeded. --perplexity scores a language model on a
    text; with --against BUNDLE, the distance between the two models' token distributions is judged too. --wer does the
    same for a speech recogniser: both texts are compared in lower case and without punctuation.
    """
    from intaglio.validation import validate

    _check_alone(options)
    result = validate(bundle, **options)
    if as_json:
        print_json(result)
        return 0 if result.passed else 1
    if not is_quiet():
        _show(result, bundle, options)
    if not result.judged:
        say(f"Measured, not judged: add --against BUNDLE to judge it. Report: {result.report}")
    else:
        say(f"{verdict(result.passed)}. Report: {result.report}")
    return 0 if result.passed else 1


def _show(result: Validated, bundle: Path, options: Mapping[str, Any]) -> None:
    """Print all that was measured, and its bounds."""
    against = options["against"] or "pytorch"
    if isinstance(result.perplexity, float):
        _show_perplexity(result, bundle, options["perplexity"] or options["data"] or f"what {against} writes")
    elif options["wer"] is not None:
        _show_word_errors(result, bundle, options["wer"])
    else:
        _show_outputs(result, f"{bundle} on {options['target']} against {against}", options["bisect"])
    if result.judged and result.measures:
        _show_measures(result)
    if result.judged and not result.passed and result.measures:
        _advise(bundle, options)


def _check_alone(options: Mapping[str, Any]) -> None:
    """Refuse options that do not apply to a perplexity."""
    given = [f"--{name}" for name in ("data", "bisect") if options[name]]
    if options["perplexity"] is not None and given:
        raise UsageError(f"--perplexity scores one text: leave out {', '.join(given)}.")


def _show_outputs(result: Validated, title: str, bisected: bool) -> None:
    rows = [
        (name, error.max_abs, error.mean_abs, error.relative, error.cosine, error.bound, error.passed)
        for name, error in summed_up(result.outputs)
    ]
    columns = ["output", "max |error|", "mean |error|", "relative", "cosine", "bound", "passed"]
    print_table(title, columns, rows, may_drop=["mean |error|", "relative", "bound"])
    broken = [sentence for error in result.outputs.values() for sentence in error.broken]
    for sentence in shortened(broken, BROKEN):
        say(printable(f"{sentence[0].upper()}{sentence[1:]}."))
    if result.not_compared:
        names = ", ".join(shortened(result.not_compared, BROKEN))
        say(printable(f"Not compared, because the other model does not have it: {names}"))
    if bisected:
        first = result.first_layer_beyond
        found = f"{first.layer}: relative error {first.relative:.3g}, bound {first.bound:.3g}" if first else "none"
        say(printable(f"First layer beyond its bound: {found}"))


def _advise(bundle: Path, options: Mapping[str, Any]) -> None:
    """Name the recipes that passed on models like this one."""
    from intaglio.accuracy.default_bounds import given_bounds
    from intaglio.bundle.manifest_reading import read_manifest
    from intaglio.graph_passes.recipes.measured import described
    from intaglio.validation.reports.recipe_advice import recipes_to_try

    given = given_bounds(*(options[name] for name in ("bound", "max_abs", "min_cosine", "max_perplexity_rise")))
    found = recipes_to_try(read_manifest(bundle), given)
    rows = [
        (f"{each.recipe} {each.options}", f"{each.size:.2f}", described(each.measures), ", ".join(each.models))
        for each in found[:ADVISED]
    ]
    if rows:
        columns = ["--recipe", "size", "against float32, at worst", "measured on"]
        print_table("Recipes that passed on other models of this task", columns, rows, may_drop=["measured on"])
        say("Yours may differ. `intaglio recipes` says what these models are; --bisect finds the first bad layer.")


def _show_measures(result: Validated) -> None:
    from intaglio.validation.measures.measures import LABELS

    rows = [
        (LABELS[each.name], f"{each.value:.4g}", f"{'≥' if each.at_least else '≤'} {each.bound:g}", each.passed)
        for each in result.measures
    ]
    print_table(f"Judged as {result.changes}", ["measure", "value", "bound", "passed"], rows)


def _show_perplexity(result: Validated, bundle: Path, text: object) -> None:
    rows = [("bundle", str(bundle)), ("text", str(text)), ("perplexity", f"{result.perplexity:.4f}")]
    if isinstance(result.against_perplexity, float):
        rows += [
            ("perplexity of the other", f"{result.against_perplexity:.4f}"),
            ("KL divergence", f"{result.kl_divergence:.6f} nats per token"),
            ("same top token", f"{100 * float(result.same_top or 0):.2f} %"),
        ]
    rows.append(("tokens", f"{result.tokens:,}"))
    print_table("Perplexity", ["", ""], rows)


def _show_word_errors(result: Validated, bundle: Path, recordings: Path) -> None:
    counts = f"{result.substitutions} substituted, {result.deletions} deleted, {result.insertions} inserted"
    rows = [
        ("bundle", str(bundle)),
        ("recordings", f"{recordings}: {result.recordings}, {result.seconds:.1f} seconds, {result.words:,} words"),
        ("word error rate", f"{result.wer:.2f} % ({counts})"),
        ("character error rate", f"{result.cer:.2f} %"),
    ]
    if isinstance(result.against_wer, float):
        rows += [
            ("of the other model", f"words {result.against_wer:.2f} %, characters {result.against_cer:.2f} %"),
        ]
    if isinstance(result.real_time_factor, float):
        rows.append(("real-time factor", f"{result.real_time_factor:.4f}"))
    print_table("Word errors", ["", ""], rows)
    if result.worst:
        listed = [(Path(each.recording).name, each.errors, each.words) for each in result.worst]
        print_table("Recordings with the most errors", ["recording", "errors", "words"], listed)
