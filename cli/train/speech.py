"""`intaglio train speech`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from intaglio.cli.options.choices import PATH, OneOf
from intaglio.cli.printing.results import force_option, json_option, notice, print_json, print_table, say
from intaglio.cli.running.command import section, verb
from intaglio.errors import UsageError

MAKE = "python examples/make_speech_corpus.py -o corpus"

if TYPE_CHECKING:
    from collections.abc import Callable

    from intaglio.training import TrainedSpeech
    from intaglio.training.speech.results import Evaluation
    from intaglio.training.speech.word_errors import WordErrors

EPILOG = """\b
Examples:
  intaglio train speech corpus -o ./squeezeformer
  intaglio train speech corpus -o ./conformer --architecture conformer-ctc --minutes 60 --threads 2
  intaglio train speech corpus -o ./larger --pieces 256 --width 144 --layers 8
  intaglio train speech corpus -o ./no-skip --ablation no-skip --json
  intaglio train speech corpus -o ./longer --start ./squeezeformer --learning-rate 1e-3 --mask-after 0
  intaglio export ./squeezeformer -o recogniser
  intaglio run recogniser meeting.wav
"""


def _made_with_the_corpus(option: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option of earlier versions, which now belongs to the script that makes a corpus."""

    def refuse(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise UsageError(f"train speech: {option} moved to the script that makes a CORPUS: {MAKE}")

    return click.option(option, hidden=True, expose_value=False, callback=refuse)


@verb("speech", epilog=EPILOG, short_help="Train a speech recogniser on recordings.")
@click.argument("corpus", required=False, type=PATH)
@click.option("-o", "--output", required=True, type=PATH, help="The checkpoint to make.")
@click.option(
    "--architecture",
    type=OneOf(["squeezeformer", "conformer-ctc"]),
    default="squeezeformer",
    help="Architecture of the encoder.",
)
@section("Network")
@click.option("--width", default=96, help="Width of the encoder.")
@click.option("--layers", default=6, help="Blocks of the encoder.")
@click.option("--heads", default=4, help="Attention heads.")
@click.option(
    "--channels",
    type=int,
    help="Channels of the subsampling convolutions.  [default: 96, or 32 in a Conformer-CTC; both cost the same]",
)
@click.option("--dropout", default=0.0, help="Dropout, in attention too.")
@click.option(
    "--ablation",
    type=OneOf(["no-skip", "no-upsampling", "post-norm", "pre-norm", "no-swish"]),
    help="Change the Squeezeformer: for comparison only.",
)
@click.option("--pieces", default=128, help="Tokens of a sub-word vocabulary; 0: characters.")
@click.option(
    "--letters",
    default=0.5,
    help="Weight of the auxiliary loss on letters after an early block, in training only; 0: none.",
)
@section("Training")
@click.option("--steps", default=9000, help="Steps of the optimiser.")
@click.option("--minutes", type=float, help="Maximum training time, in minutes.")
@click.option(
    "--optimizer",
    type=OneOf(["muon", "adamw"]),
    default="muon",
    help="Optimiser of the matrices; AdamW trains everything else.",
)
@click.option("--learning-rate", default=3e-3, help="Peak learning rate; ten times that for Muon.")
@click.option("--warm-up", default=600, help="Steps until the peak.")
@click.option("--hold", default=1000, help="Steps at the peak; then the rate decays as 1 / step.")
@click.option("--cool-down", default=0.3, help="Final fraction of the training in which the rate falls to 0.")
@click.option("--batch-frames", default=6000, help="Frames of 10 ms per step.")
@click.option(
    "--variants",
    default=1,
    help="Noisy variants of each utterance, used in turn, one per epoch (58 MB per hour); 0: new ones in every epoch.",
)
@section("SpecAugment")
@click.option("--band-masks", default=2, help="Number of frequency masks.")
@click.option("--band-width", default=10, help="Maximum width of a frequency mask, of 80 bands.")
@click.option("--time-masks", default=2, help="Number of time masks, each at most 5 % of the frames.")
@click.option("--mask-after", default=3000, help="Initial steps without masks.")
@section("Evaluation")
@click.option("--evaluate-every", default=500, help="Steps between two evaluations.")
@click.option("--average", default=5, help="Number of best evaluations whose weights are averaged.")
@_made_with_the_corpus("--utterances")
@_made_with_the_corpus("--held-out")
@_made_with_the_corpus("--corpora")
@_made_with_the_corpus("--recordings")
@section("Start")
@click.option("--start", type=PATH, help="Start from the weights of this checkpoint.")
@click.option("--seed", default=0, help="Random seed of weights, order, noise and dropout.")
@click.option("--threads", type=int, help="Number of threads.  [default: one per processor]")
@force_option
@json_option
def speech_command(
    corpus: Path | None,
    output: Path,
    start: Path | None,
    threads: int | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train an English speech recogniser on CORPUS, from random weights or from --start.

    CORPUS is a list of recordings, or a folder with one called utterances.jsonl. A line has "audio_filepath", "text"
    and "part": train, validation, test, or recordings (other ones to test on); "kind" and "voice" group the errors.
    Recordings to train on are mixed with noise, rooms and other speeds. The weights with the lowest word error rate
    (WER) on the validation part are kept, even if Ctrl-C ends the training, but not before the first evaluation. Each
    evaluation is a line on standard error.
    """
    from intaglio.training import train_speech
    from intaglio.training.speech.training_options import SpeechTraining

    if corpus is None:
        raise UsageError(
            f"train speech: no CORPUS. Give a list of recordings, or synthesise them, in the repository: {MAKE}"
        )
    training = SpeechTraining(**options)
    result = train_speech(corpus, output, training, threads, force, _report, start)
    if as_json:
        print_json(result)
        return
    _print(result)


def _report(evaluation: Evaluation) -> None:
    notice(
        f"step {evaluation.step:,}: loss {evaluation.loss:.3f}, WER {evaluation.wer:.1f} %, {evaluation.seconds:.0f} s"
    )


def _print(result: TrainedSpeech) -> None:
    errors = result.errors
    groups = {"held-out voices": errors.test, "the same, mixed": errors.mixed}
    groups |= {f"  {name}": each for name, each in errors.kinds.items()}
    groups |= {f"  {name}": each for name, each in errors.voices.items()}
    groups |= {f"people: {name}": each for name, each in errors.recordings.items()}
    print_table("Word errors", ["", "WER %", "words", "utterances"], [_row(*each) for each in groups.items()])
    say(
        f"{result.checkpoint}: {result.parameters:,} parameters, {result.tokens} tokens, after {result.steps:,} steps; "
        f"WER {result.validation_wer:.1f} % on the validation part, in {result.seconds:.0f} s"
    )


def _row(name: str, errors: WordErrors) -> tuple[str, str, int, int]:
    return name, f"{errors.wer:.1f}", errors.words, errors.utterances
