"""Train a small and a large T5 with one tokenizer to write prose from its words, on the text that comes with Python.

    python examples/train_text_to_text.py --out DIRECTORY

Both are checkpoints as transformers reads them, with float16 weights; the large one has 27 times the parameters, and
takes 90 minutes on two cores. Beside them lie pairs that were held out of the training, for judging, others of them
for choosing thresholds, a piece of the training's for calibration, and a README.md with the measurements.
"""

from __future__ import annotations

import itertools
import math
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
import numpy.typing as npt
import torch
import transformers
from language_model import GRADIENT_NORM, rate
from prose import Pair, pairs, split_paragraphs
from python_text import documents
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from train_language_models import check_output, run_command, save
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from intaglio import TextQuality, atomic_directory, text_quality

PAD, END = "<pad>", "</s>"
VOCABULARY = 1024
LONGEST = 160  # tokens of a passage, or of its words, at most
JUDGED = 200  # held-out pairs that the models are judged on
CALIBRATION = 512  # pairs
TURNED = 6.0  # added to attention scores, which are about 1 at first
ALIKE = 0.25  # of a key is the query at first that a decoder looks for in what was encoded
OFFSETS = (1, -1, -2, 2, -3, 3)  # of the tokens that the heads look at first, the encoder's; the decoder's: -1, -2, ...
TOGETHER = 50  # pairs that are judged at a time
IGNORED = -100  # the label that cross-entropy passes over
SORTED_TOGETHER = 32  # batches whose pairs are sorted by length, so that those of one batch need little padding

Row = tuple[list[int], list[int]]  # token ids of the words, and of the prose, each with the end


@dataclass(frozen=True)
class Shape:
    """The size of a model, and how it is trained."""

    encoder_layers: int
    decoder_layers: int
    width: int
    heads: int
    learning_rate: float  # the highest, of Muon and AdamW
    steps: int
    pairs: int = 32  # a step


SHAPES = {
    "small": Shape(encoder_layers=2, decoder_layers=1, width=128, heads=2, learning_rate=3e-3, steps=3000),
    # transformers makes a decoder's cache for as many layers as the encoder has: there must not be fewer.
    "large": Shape(encoder_layers=5, decoder_layers=5, width=384, heads=6, learning_rate=2e-3, steps=1400),
}


class ModelMeasurements(msgspec.Struct):
    """One model: its size, its training, and how well the written file does the task, greedily."""

    encoder_layers: int
    decoder_layers: int
    width: int
    parameters: int
    steps: int
    seconds: float
    loss: float  # nats a token of held-out prose
    quality: TextQuality


class Measurements(msgspec.Struct):
    """The inputs of a run, and its measurements."""

    seed: int
    python: str
    torch: str
    transformers: str
    training_paragraphs: int
    held_out_paragraphs: int
    judged: int
    words_alone: TextQuality  # the quality of the unchanged words
    models: dict[str, ModelMeasurements]


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory to make.")
@click.option("--model", "names", type=click.Choice(list(SHAPES)), multiple=True, help="Train only this one.")
@click.option("--steps", type=click.IntRange(min=1), help="Steps to train each model for, instead of its own number.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of weights and batches.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as one JSON object on one line.")
def command(out: Path, names: tuple[str, ...], steps: int | None, seed: int, as_json: bool) -> None:
    """Train, judge, write and print."""
    check_output(out)
    measured = train_models(out, names or tuple(SHAPES), steps, seed)
    click.echo(msgspec.json.encode(measured).decode() if as_json else readme(measured))


def train_models(out: Path, names: Sequence[str], steps: int | None = None, seed: int = 0) -> Measurements:
    """Train the models `names` of `SHAPES` and write the directory `out`, whole or not at all.

    `steps`: for each model, instead of its own number.
    """
    training, held_out = split_paragraphs([*documents(), *documents(sources=True)])
    tokenizer = word_tokenizer(list(pairs(training, seed)))
    judged = list(pairs(held_out, seed))
    judging, validation = judged[:JUDGED], judged[JUDGED : 2 * JUDGED]
    run = Run(tokenizer, training, judging, seed)
    with atomic_directory(out) as directory:
        for name, chosen in (
            ("held_out", judging),
            ("validation", validation),
            ("calibration", list(itertools.islice(pairs(training, seed), CALIBRATION))),
        ):
            lines = [msgspec.json.encode({"prompt": pair.words, "reference": pair.prose}) for pair in chosen]
            (directory / f"{name}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        measured = Measurements(
            seed=seed,
            python=platform.python_version(),
            torch=str(torch.__version__),
            transformers=transformers.__version__,
            training_paragraphs=len(training),
            held_out_paragraphs=len(held_out),
            judged=len(judging),
            words_alone=text_quality([pair.words for pair in judging], [pair.prose for pair in judging]),
            models={name: run.train(name, SHAPES[name], steps, directory) for name in names},
        )
        (directory / "README.md").write_text(readme(measured), encoding="utf-8")
    return measured


def word_tokenizer(texts: Sequence[Pair]) -> PreTrainedTokenizerFast:
    """A byte-level BPE that ends a text with `END`; spaces are tokens, so that a word is the same wherever it is."""
    tokenizer = Tokenizer(models.BPE())
    spaces = pre_tokenizers.Split(" ", "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([spaces, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for pair in texts for text in (pair.words, pair.prose)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )


def new_model(shape: Shape, vocabulary: int) -> T5ForConditionalGeneration:
    """An untrained model, float32, from torch's seed, which has the parts that copying takes: see `begin_to_copy`."""
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=vocabulary,
            d_model=shape.width,
            d_kv=shape.width // shape.heads,
            d_ff=4 * shape.width,
            num_layers=shape.encoder_layers,
            num_decoder_layers=shape.decoder_layers,
            num_heads=shape.heads,
            dropout_rate=0.0,  # every epoch has other passages
            feed_forward_proj="relu",
            tie_word_embeddings=True,
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
        )
    )
    begin_to_copy(model)
    return model


@torch.no_grad()
def begin_to_copy(model: T5ForConditionalGeneration) -> None:
    """Let the decoder attend to where the words that it wrote last stand in the source, and see the next word.

    To copy a word one has to find the word after those that were just written. From random weights a small model
    learns that in a thousand steps, a larger one not in a thousand; from these in a hundred. Every self-attention head
    begins by looking at a neighbour, the first of the encoder's at the next token. What the decoder's heads make of a
    token before is what the encoder's make of it, and what is alike attends to each other: queries begin as keys.
    """
    encoder, decoder = (stack.block[0].layer[0].SelfAttention for stack in (model.encoder, model.decoder))
    heads, width = encoder.n_heads, encoder.key_value_proj_dim
    back = [-1 - head for head in range(heads)]
    for attention, offsets in ((encoder, OFFSETS[:heads]), (decoder, back)):
        buckets = attention._relative_position_bucket(
            torch.tensor(offsets),
            bidirectional=not attention.is_decoder,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=attention.relative_attention_max_distance,
        )
        attention.relative_attention_bias.weight[buckets, range(heads)] = TURNED
    for head, offset in enumerate(back):
        if offset in OFFSETS[:heads]:
            rows, other = (slice(at * width, (at + 1) * width) for at in (head, OFFSETS.index(offset)))
            decoder.v.weight[rows] = encoder.v.weight[other]
            decoder.o.weight[:, rows] = encoder.o.weight[:, other]
    for block in model.decoder.block:
        block.layer[1].EncDecAttention.q.weight.copy_(ALIKE * block.layer[1].EncDecAttention.k.weight)


@dataclass(frozen=True)
class Run:
    """The common inputs of the two trainings of a pair."""

    tokenizer: PreTrainedTokenizerFast
    paragraphs: list[str]
    judging: list[Pair]
    seed: int

    def train(self, label: str, shape: Shape, steps: int | None, directory: Path) -> ModelMeasurements:
        """Train a model, write it to `directory`/`label`, and judge the file that was written, in float32."""
        torch.manual_seed(self.seed)
        model = new_model(shape, len(self.tokenizer))
        seconds = self._fit(label, model, shape, steps or shape.steps)
        save(model, self.tokenizer, directory / label)
        written = T5ForConditionalGeneration.from_pretrained(directory / label, dtype=torch.float32).eval()
        texts = self._written(written)
        return ModelMeasurements(
            encoder_layers=shape.encoder_layers,
            decoder_layers=shape.decoder_layers,
            width=shape.width,
            parameters=sum(value.numel() for value in written.parameters()),
            steps=steps or shape.steps,
            seconds=round(seconds, 1),
            loss=self._loss(written),
            quality=text_quality(texts, [pair.prose for pair in self.judging]),
        )

    def _fit(self, label: str, model: T5ForConditionalGeneration, shape: Shape, steps: int) -> float:
        """Train in place, in bfloat16 products; return the seconds that it took."""
        by_kind = optimizers(model)
        started, losses = time.monotonic(), list[float]()
        model.train()
        for step, rows in zip(range(1, steps + 1), self._batches(shape.pairs), strict=False):
            for group in itertools.chain.from_iterable(optimizer.param_groups for optimizer in by_kind):
                group["lr"] = shape.learning_rate * rate((step - 1) / steps)
            loss = loss_of(model, rows)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
            for optimizer in by_kind:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if step % max(1, steps // 20) == 0:
                seconds = time.monotonic() - started
                model.eval()
                held_out = self._loss(model)
                model.train()
                click.echo(
                    f"{label}: step {step}, loss {np.mean(losses):.3f}, held-out loss {held_out:.3f}, "
                    f"{seconds * (steps / step - 1) / 60:.1f} minutes left",
                    err=True,
                )
                losses.clear()
        model.eval()
        return time.monotonic() - started

    def _batches(self, size: int) -> Iterator[list[Row]]:
        """Batches without end, each of pairs of about one length; every paragraph once an epoch."""
        generator = np.random.default_rng(self.seed)
        for epoch in itertools.count(1):
            rows = self._rows(list(pairs(self.paragraphs, self.seed + epoch)))
            for begin in range(0, len(rows), size * SORTED_TOGETHER):
                chunk = sorted(rows[begin : begin + size * SORTED_TOGETHER], key=lambda row: len(row[0]) + len(row[1]))
                batches = [chunk[first : first + size] for first in range(0, len(chunk), size)]
                yield from (batches[index] for index in generator.permutation(len(batches)))

    def _rows(self, texts: Sequence[Pair]) -> list[Row]:
        encode = self.tokenizer.backend_tokenizer.encode_batch
        words, prose = encode([pair.words for pair in texts]), encode([pair.prose for pair in texts])
        rows = [(first.ids, second.ids) for first, second in zip(words, prose, strict=True)]
        return [row for row in rows if max(map(len, row)) <= LONGEST]

    @torch.inference_mode()
    def _loss(self, model: T5ForConditionalGeneration) -> float:
        """Mean loss in nats a token of the prose that the models are judged on."""
        batches = list(_pieces(self._rows(self.judging)))
        return float(np.average([loss_of(model, rows).item() for rows in batches], weights=[*map(len, batches)]))

    def _written(self, model: T5ForConditionalGeneration) -> list[str]:
        """The model's greedy output for each of the judged pairs."""
        texts: list[str] = []
        for some in _pieces(self.judging):
            ids = torch.from_numpy(padded([self.tokenizer(pair.words)["input_ids"] for pair in some], 0))
            written = model.generate(ids, attention_mask=(ids != 0).long(), max_new_tokens=LONGEST, do_sample=False)
            texts += self.tokenizer.batch_decode(written, skip_special_tokens=True)
        return [text.strip() for text in texts]


def optimizers(model: T5ForConditionalGeneration) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Muon for the matrices that multiply states, AdamW for embeddings, attention biases and norms.

    With Muon the small model is after 400 steps where it is after 700 with AdamW alone.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    matrices, others = list[Tensor](), list[Tensor]()
    for value in model.parameters():
        (others if value.ndim == 1 or id(value) in embeddings else matrices).append(value)
    return (
        torch.optim.Muon(matrices, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, weight_decay=0.0, fused=True),
    )


def _pieces(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Batches of the pairs that the models are judged on together."""
    return (items[first : first + TOGETHER] for first in range(0, len(items), TOGETHER))


def loss_of(model: T5ForConditionalGeneration, rows: Sequence[Row]) -> Tensor:
    """Cross-entropy in nats a token of the prose, given the words."""
    words = torch.from_numpy(padded([row[0] for row in rows], 0))
    labels = torch.from_numpy(padded([row[1] for row in rows], IGNORED))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=words, attention_mask=(words != 0).long(), labels=labels).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def padded(rows: Sequence[Sequence[int]], filler: int) -> npt.NDArray[np.int64]:
    """int64 [rows, longest], filled up at the end."""
    return np.array([[*row, *[filler] * (max(map(len, rows)) - len(row))] for row in rows], np.int64)


def readme(measured: Measurements) -> str:
    """The README.md of a pair."""
    rows = [
        f"| `{label}/` | {model.encoder_layers} + {model.decoder_layers} × {model.width} | {model.parameters:,} "
        f"| {model.steps:,} | {model.seconds:.0f} s | {math.exp(model.loss):.3f} | {model.quality.bleu:.2f} "
        f"| {model.quality.rouge_l:.2f} |"
        for label, model in measured.models.items()
    ]
    chosen = "".join(f" --model {label}" for label in measured.models) if len(measured.models) < len(SHAPES) else ""
    steps = {model.steps for label, model in measured.models.items() if model.steps != SHAPES[label].steps}
    chosen += "".join(f" --steps {number}" for number in steps)
    fields = {name: getattr(measured, name) for name in measured.__struct_fields__}
    return README.format(rows="\n".join(rows), chosen=chosen, **fields)


README = """\
# T5s that write prose from its words

T5 checkpoints with float16 weights and one byte-level BPE tokenizer, trained on {training_paragraphs} paragraphs of
prose from Python's manual, docstrings and comments. The input is the words of a passage, the output the passage as it
was written, with punctuation and markup. Made by

    python examples/train_text_to_text.py{chosen} --seed {seed} --out DIRECTORY

| | encoder + decoder layers × width | parameters | steps | training | perplexity | BLEU | ROUGE-L |
| --- | --- | --- | --- | --- | --- | --- | --- |
| the words themselves | | | | | | {words_alone.bleu:.2f} | {words_alone.rouge_l:.2f} |
{rows}

Judged on the {judged} pairs of `held_out.jsonl`, of modules and topics that were not trained on, greedily and in
float32; BLEU by sacrebleu, ROUGE-L by rouge-score, 0 to 100. `validation.jsonl` holds other such pairs, for choosing
thresholds; `calibration.jsonl` pairs of the training.

Python {python}, torch {torch}, transformers {transformers}.

Terms: the weights and the tokenizer's files were made by that program and are under the project's Apache License 2.0.
The texts are part of Python: Copyright © Python Software Foundation, under the PSF License Version 2.
"""


if __name__ == "__main__":
    run_command("train_text_to_text.py", command)
