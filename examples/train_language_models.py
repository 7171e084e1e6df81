"""Train a small and a large language model with one tokenizer, on the text that comes with Python.

    python examples/train_language_models.py --preset tests --out DIRECTORY

Both are checkpoints of GPT-2's architecture as transformers reads them, with float16 weights. Beside them lie the text
that was held out of the training, a piece of the training text for calibration, and a README.md with the measurements.
The preset `tests` makes the pair that lies in examples/language_models, of English; `benchmarks` makes a larger one
with 22 times the parameters between small and large, of English and Python, in about an hour on two cores.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
import numpy as np
import torch
import transformers
from language_model import (
    END,
    Length,
    Progress,
    Shape,
    Tokens,
    byte_level_tokenizer,
    drafting_agreement,
    faster_precision,
    new_model,
    perplexity,
    perplexity_of,
    predictions,
    stream,
    train,
    unigram_perplexity,
)
from python_text import Document, documents, is_held_out
from transformers import GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerFast

from intaglio import IntaglioError, UsageError, atomic_directory, check_output_directory, interrupts

CALIBRATION_CHARACTERS = 120_000
GLANCE = 16_384  # held-out tokens that the perplexity shown during training is of
SMALL, LARGE = "small", "large"
SHARES = {SMALL: 0.15, LARGE: 0.85}  # of --minutes


@dataclass(frozen=True)
class Preset:
    """A pair of models and the tokenizer they share."""

    vocabulary: int
    context: int
    small: Shape
    large: Shape
    sources: bool = False  # trained on the library's sources, not only on its docstrings


PRESETS = {
    "tests": Preset(
        vocabulary=1536,
        context=256,
        small=Shape(layers=2, width=64, heads=2, learning_rate=4e-3, dropout=0.0, steps=5000, rows=4),
        large=Shape(layers=3, width=256, heads=4, learning_rate=1.5e-3, dropout=0.1, steps=8000, rows=4),
    ),
    "benchmarks": Preset(
        vocabulary=3072,
        context=256,
        sources=True,
        small=Shape(layers=2, width=96, heads=2, learning_rate=3e-3, dropout=0.0, steps=10000, rows=8),
        large=Shape(layers=6, width=384, heads=6, learning_rate=1e-3, dropout=0.0, steps=4000, rows=8),
    ),
}


@dataclass(frozen=True)
class Texts:
    """Training and held-out documents; no subject is in both."""

    training: tuple[str, ...]
    held_out: tuple[str, ...]

    @classmethod
    def split(cls, found: Sequence[Document]) -> Texts:
        """Split documents by their subjects."""
        held_out = tuple(document.text for document in found if is_held_out(document.subject))
        return cls(tuple(document.text for document in found if not is_held_out(document.subject)), held_out)

    def calibration(self) -> list[str]:
        """Documents from all over the training text, about `CALIBRATION_CHARACTERS` together."""
        ordered = sorted(self.training, key=lambda text: hashlib.sha256(text.encode()).digest())
        ends = np.cumsum([len(text) for text in ordered])
        return ordered[: int(np.searchsorted(ends, CALIBRATION_CHARACTERS)) + 1]


class ModelMeasurements(msgspec.Struct):
    """One model: its size, its training, and how well it predicts the held-out text."""

    layers: int
    width: int
    heads: int
    parameters: int
    steps: int
    seconds: float
    training_perplexity: float  # of the calibration text
    perplexity_float32: float  # before the weights were rounded to float16
    perplexity: float  # of the float16 weights, computed in float32


class Measurements(msgspec.Struct):
    """The inputs of a run, and its measurements."""

    preset: str
    length: str  # the option that took the place of the preset's steps, or nothing
    seed: int
    precision: str
    python: str
    torch: str
    transformers: str
    vocabulary: int
    context: int
    training_documents: int
    training_tokens: int
    training_sha256: str
    held_out_documents: int
    held_out_tokens: int
    held_out_sha256: str
    unigram_perplexity: float
    small: ModelMeasurements
    large: ModelMeasurements
    agreement: float  # of the two models' likeliest tokens, over the held-out text
    drafting_agreement: float  # of the small model's likeliest token with what the large one writes


def run_command(program: str, command: click.Command) -> None:
    """Start a command line: an error that the user can fix is one line on standard error and exit code 2."""
    interrupts.install()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        command(prog_name=program, standalone_mode=False)
        return
    except click.ClickException as error:
        message = error.format_message()
    except IntaglioError as error:
        message = str(error)
    except (KeyboardInterrupt, click.exceptions.Abort):
        message = "interrupted. Unfinished output was removed; run the command again."
    click.echo(f"{program}: {message}", err=True)
    sys.exit(2)


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--preset", type=click.Choice(list(PRESETS)), default="tests", show_default=True, help="Which pair.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory to make.")
@click.option("--steps", type=click.IntRange(min=1), help="Steps to train each model for, instead of the preset's.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Train the pair for so long instead.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of weights and batches.")
@click.option("--precision", type=click.Choice(["float32", "bfloat16"]), help="Of the products; default: the faster.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as one JSON object on one line.")
def command(
    preset: str,
    out: Path,
    steps: int | None,
    minutes: float | None,
    seed: int,
    precision: str | None,
    as_json: bool,
) -> None:
    """Train, judge, write and print."""
    if steps is not None and minutes is not None:
        raise UsageError("--steps and --minutes: got both, expected one. Leave one of them out.")
    check_output(out)
    texts = Texts.split(documents(PRESETS[preset].sources))
    measured = train_pair(preset, PRESETS[preset], texts, out, steps, minutes, seed, precision)
    click.echo(msgspec.json.encode(measured).decode() if as_json else readme(measured))


def train_pair(
    name: str,
    preset: Preset,
    texts: Texts,
    out: Path,
    steps: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    precision: str | None = None,
) -> Measurements:
    """Train `preset` on `texts` and write the directory `out`, whole or not at all.

    `steps` a model or `minutes` for both take the place of the preset's steps. Raises `UsageError` for an `out` that
    exists, or with nothing to train on, and `StorageError` where it cannot be written.
    """
    check_output(out)
    tokenizer = byte_level_tokenizer(texts.training, preset.vocabulary, preset.context)
    training, held_out, calibration = (
        stream(tokenizer, part) for part in (texts.training, texts.held_out, texts.calibration())
    )
    _check_lengths(preset, training, held_out)
    dtype = getattr(torch, precision) if precision else faster_precision(preset.large, len(tokenizer), preset.context)
    run = Run(tokenizer, training, held_out, calibration, seed, dtype)
    with atomic_directory(out) as directory:
        small = run.train(SMALL, preset.small, preset.context, steps, minutes, directory)
        large = run.train(LARGE, preset.large, preset.context, steps, minutes, directory)
        measured = Measurements(
            preset=name,
            length=f" --steps {steps}" if steps else f" --minutes {minutes:g}" if minutes else "",
            seed=seed,
            precision=str(dtype).removeprefix("torch."),
            python=platform.python_version(),
            torch=str(torch.__version__),
            transformers=transformers.__version__,
            vocabulary=len(tokenizer),
            context=preset.context,
            training_documents=len(texts.training),
            training_tokens=len(training),
            training_sha256=_sha256(texts.training),
            held_out_documents=len(texts.held_out),
            held_out_tokens=len(held_out),
            held_out_sha256=_sha256(texts.held_out),
            unigram_perplexity=unigram_perplexity(training, held_out, len(tokenizer)),
            small=small.measured,
            large=large.measured,
            agreement=float(np.mean(small.choices == large.choices)),
            drafting_agreement=drafting_agreement(small.model, large.model, held_out),
        )
        (directory / "held_out.txt").write_text(_file(texts.held_out), encoding="utf-8")
        (directory / "calibration.txt").write_text(_file(texts.calibration()), encoding="utf-8")
        (directory / "README.md").write_text(readme(measured), encoding="utf-8")
    return measured


@dataclass(frozen=True)
class Trained:
    """A written model, read back in float32, and its measurements."""

    model: GPT2LMHeadModel
    choices: Tokens  # int64 [held-out tokens - 1], the likeliest in the place of each but the first
    measured: ModelMeasurements


@dataclass(frozen=True)
class Run:
    """The common inputs of the two trainings of a pair."""

    tokenizer: PreTrainedTokenizerFast
    training: Tokens
    held_out: Tokens
    calibration: Tokens
    seed: int
    precision: torch.dtype

    def train(
        self, label: str, shape: Shape, context: int, steps: int | None, minutes: float | None, directory: Path
    ) -> Trained:
        """Train a model, write it to `directory`/`label`, and judge the file that was written, in float32."""
        torch.manual_seed(self.seed)
        model = new_model(shape, len(self.tokenizer), context, end=self.tokenizer.eos_token_id)
        length = Length(steps or shape.steps, minutes and minutes * 60 * SHARES[label])
        last = train(model, shape, self.training, length, self.seed, self.precision, self._teller(label, model))
        perplexity_float32 = perplexity(model, self.held_out)
        save(model, self.tokenizer, directory / label)
        written = GPT2LMHeadModel.from_pretrained(directory / label, dtype=torch.float32).eval()
        losses, choices = predictions(written, self.held_out)
        measured = ModelMeasurements(
            layers=shape.layers,
            width=shape.width,
            heads=shape.heads,
            parameters=sum(value.numel() for value in model.parameters()),
            steps=last.step,
            seconds=round(last.seconds, 1),
            training_perplexity=perplexity(written, self.calibration),
            perplexity_float32=perplexity_float32,
            perplexity=perplexity_of(losses),
        )
        return Trained(written, choices, measured)

    def _teller(self, label: str, model: GPT2LMHeadModel) -> Callable[[Progress], None]:
        def tell(progress: Progress) -> None:
            seen = perplexity(model, self.held_out[:GLANCE])
            left = progress.seconds * (1 / progress.part - 1) / 60
            click.echo(
                f"{label}: step {progress.step}, loss {progress.loss:.3f}, held-out perplexity {seen:.2f}, "
                f"{left:.1f} minutes left",
                err=True,
            )

        return tell


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write a checkpoint with float16 weights that any transformers since 4.56 reads; `model` becomes float16."""
    model.half().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    for path in directory.iterdir():
        path.chmod(0o644)  # safetensors lets nobody else read
    path = directory / "tokenizer_config.json"
    config = msgspec.json.decode(path.read_bytes())
    # The name that every version knows; the newest write another one.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n")


def check_output(out: Path) -> None:
    """Refuse an output path that exists or cannot be made."""
    if out.exists():
        raise UsageError(f"--out {out}: exists. Remove it, or choose another path.")
    check_output_directory(out, force=False)


def _check_lengths(preset: Preset, training: Tokens, held_out: Tokens) -> None:
    for what, tokens in (("training", training), ("held-out", held_out)):
        if len(tokens) <= 2 * preset.context:
            raise UsageError(
                f"this Python's library has {len(tokens)} tokens of {what} text, expected more than "
                f"{2 * preset.context}. Use a Python with the sources of its library and pydoc_data."
            )


def _file(texts: Sequence[str]) -> str:
    """The content of a text file: a tokenizer reads it as the stream of tokens that the documents are here."""
    return "".join(text + END for text in texts)


def _sha256(texts: Sequence[str]) -> str:
    return hashlib.sha256(_file(texts).encode()).hexdigest()


def readme(measured: Measurements) -> str:
    """The README.md of a pair."""
    rows = [
        f"| `{label}/` | {model.layers} × {model.width} | {model.parameters:,} | {model.steps:,} "
        f"| {model.seconds:.0f} s | {model.perplexity_float32:.2f} | {model.perplexity:.2f} "
        f"| {model.training_perplexity:.2f} |"
        for label, model in ((SMALL, measured.small), (LARGE, measured.large))
    ]
    what = "sources" if PRESETS[measured.preset].sources else "docstrings"
    return README.format(
        rows="\n".join(rows),
        what=what,
        **{name: getattr(measured, name) for name in measured.__struct_fields__},
    )


README = """\
# A small and a large language model

Two GPT-2-architecture checkpoints with float16 weights and one byte-level BPE tokenizer of {vocabulary} tokens, context
{context}, trained on the topics of Python's reference manual and the {what} of its standard library. Made by

    python examples/train_language_models.py --preset {preset}{length} --seed {seed} --out DIRECTORY

| | layers × width | parameters | steps | training | perplexity in float32 | in float16 | of calibration.txt |
| --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

Perplexity is measured on the held-out text, with the trained weights and with the stored ones, rounded to float16;
both computed in float32, in windows of {context} tokens that move by half of that. The frequencies of the tokens alone
give {unigram_perplexity:.1f}. The two models find the same token the likeliest at {agreement:.1%} of the held-out text;
of the tokens that the large one writes, {drafting_agreement:.1%} are the likeliest for the small one.

- `held_out.txt`: {held_out_documents} documents, {held_out_tokens:,} tokens, of subjects that were not trained on.
- `calibration.txt`: a piece of the training text, which is {training_documents} documents, {training_tokens:,} tokens.
- In both files `<|endoftext|>`, which is one token, follows each document.

Python {python}, torch {torch}, transformers {transformers}, products in {precision}. SHA-256 of the training text
`{training_sha256}`,
of held_out.txt `{held_out_sha256}`.

Terms: the weights and the tokenizer's files were made here and are under the project's Apache License 2.0. The texts
are part of Python: Copyright © Python Software Foundation, under the PSF License Version 2, which is in NOTICE.
"""


if __name__ == "__main__":
    run_command("train_language_models.py", command)
