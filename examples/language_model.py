"""Training a language model of GPT-2's architecture from nothing on a CPU, its tokenizer, and judging it.

Documents follow each other in one stream of tokens, `END` after each; a training row is any piece of it.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

END = "<|endoftext|>"
WARM_UP = 0.04  # part of the training in which the learning rate rises
GRADIENT_NORM = 1.0  # longer gradients are cut to this length
EVALUATION_ROWS = 16

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """The size of a model, and how it is trained."""

    layers: int
    width: int
    heads: int
    learning_rate: float  # the highest
    dropout: float  # of the embeddings and of what each block adds to the stream
    steps: int
    rows: int = 8  # a step, each as long as the context
    weight_decay: float = 0.1  # of the matrices, not of embeddings, biases and normalisations


@dataclass(frozen=True)
class Length:
    """How long training lasts: a number of steps or, if given, a number of seconds."""

    steps: int
    seconds: float | None = None

    def part(self, step: int, elapsed: float) -> float:
        """How much is done after `step` steps and `elapsed` seconds, 1 at the end, and more after it."""
        return step / self.steps if self.seconds is None else elapsed / self.seconds


@dataclass(frozen=True)
class Progress:
    """What can be told during training."""

    step: int
    part: float  # 0 to 1
    loss: float  # nats a token, mean since the last time
    seconds: float


def byte_level_tokenizer(texts: Sequence[str], vocabulary: int, context: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of `vocabulary` tokens, `END` the first of them, that takes any text and gives it back."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def stream(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> Tokens:
    """int64 [tokens]: the texts, `END` after each."""
    rows = tokenizer.backend_tokenizer.encode_batch([text + END for text in texts])
    return np.concatenate([np.array(row.ids, dtype=np.int64) for row in rows])


def new_model(shape: Shape, vocabulary: int, context: int, end: int) -> GPT2LMHeadModel:
    """An untrained model, float32, from torch's seed."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_positions=context,
            n_embd=shape.width,
            n_layer=shape.layers,
            n_head=shape.heads,
            embd_pdrop=shape.dropout,
            resid_pdrop=shape.dropout,
            attn_pdrop=0.0,
            bos_token_id=end,
            eos_token_id=end,
        )
    )


def train(
    model: GPT2LMHeadModel,
    shape: Shape,
    tokens: Tokens,
    length: Length,
    seed: int,
    precision: torch.dtype,
    report: Callable[[Progress], None],
    reports: int = 10,
) -> Progress:
    """Train `model` in place with AdamW, the learning rate rising in a line and falling in a cosine to 0.

    `report` is called `reports` times, evenly, the last time at the end; that progress is returned. The same arguments,
    number of threads and machine give the same weights, unless `length` is in seconds.
    """
    parameters = dict(model.named_parameters())
    matrices = [
        value for name, value in parameters.items() if value.ndim == 2 and ".wte." not in name and ".wpe." not in name
    ]
    others = [value for value in parameters.values() if not any(value is matrix for matrix in matrices)]
    groups = [{"params": matrices, "weight_decay": shape.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=shape.learning_rate, betas=(0.9, 0.98), fused=True)
    rows = _rows(tokens, shape.rows, model.config.n_positions, seed)
    losses: list[float] = []
    started = time.monotonic()
    progress = Progress(step=0, part=0.0, loss=math.nan, seconds=0.0)
    model.train()
    for step in itertools.count(1):
        for group in optimizer.param_groups:
            group["lr"] = shape.learning_rate * rate(progress.part)
        loss = loss_of(model, next(rows), precision)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), GRADIENT_NORM)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds = time.monotonic() - started
        before = progress.part
        progress = Progress(step, min(1.0, length.part(step, seconds)), sum(losses) / len(losses), seconds)
        if int(progress.part * reports) > int(before * reports):
            model.eval()
            report(progress)
            model.train()
            losses.clear()
        if progress.part == 1:
            break
    model.eval()
    return progress


def rate(part: float) -> float:
    """The learning rate as a part of the highest, when `part` of the training is done."""
    if part < WARM_UP:
        return (part + 1e-3) / (WARM_UP + 1e-3)  # the first step moves, too
    return 0.5 + 0.5 * math.cos(math.pi * (part - WARM_UP) / (1 - WARM_UP))


def loss_of(model: GPT2LMHeadModel, rows: Tensor, precision: torch.dtype) -> Tensor:
    """Cross-entropy in nats a token of `rows`, int64 [rows, context + 1]."""
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        logits = model(rows[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


def faster_precision(shape: Shape, vocabulary: int, context: int) -> torch.dtype:
    """bfloat16 where the processor computes with it faster than with float32: measured, on one step of each."""
    times = {}
    rows = torch.zeros(shape.rows, context + 1, dtype=torch.int64)
    model = new_model(shape, vocabulary, context, 0)
    for precision in (torch.float32, torch.bfloat16):
        for _ in range(2):  # the first time sets up the library's kernels
            started = time.monotonic()
            loss_of(model, rows, precision).backward()
            times[precision] = time.monotonic() - started
    return min(times, key=lambda precision: times[precision])


def _rows(tokens: Tokens, rows: int, context: int, seed: int) -> Iterator[Tensor]:
    """int64 [rows, context + 1] without end; each epoch cuts the stream elsewhere and shuffles the pieces."""
    generator = np.random.default_rng(seed)
    while True:
        cut = int(generator.integers(context))
        pieces = (len(tokens) - 1 - cut) // context
        for chosen in np.array_split(generator.permutation(pieces), max(1, pieces // rows)):
            starts = cut + chosen * context
            yield torch.from_numpy(tokens[starts[:, None] + np.arange(context + 1)])


@torch.inference_mode()
def predictions(model: GPT2LMHeadModel, tokens: Tokens) -> tuple[npt.NDArray[np.float32], Tokens]:
    """The loss in nats of each token but the first, and the likeliest token in its place; both [tokens - 1].

    Windows as long as the context move by half of it; a token is judged once, in the first window that holds it.
    """
    context = model.config.n_positions
    stride = context // 2
    losses = np.zeros(len(tokens) - 1, dtype=np.float32)
    choices = np.zeros(len(tokens) - 1, dtype=np.int64)
    starts = np.arange(0, max(len(tokens) - stride, 1), stride)
    whole = starts[starts + context <= len(tokens)]
    batches = [*np.split(whole, range(EVALUATION_ROWS, len(whole), EVALUATION_ROWS)), starts[len(whole) :]]
    for batch in (batch for batch in batches if len(batch)):
        index = batch[:, None] + np.arange(min(context, len(tokens) - int(batch[-1])))
        rows = torch.from_numpy(tokens[index])
        logits = model(rows[:, :-1], use_cache=False).logits.float()
        found = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
        for start, loss, choice in zip(
            batch, found.view(len(batch), -1).numpy(), logits.argmax(-1).numpy(), strict=True
        ):
            first = 0 if start == 0 else stride - 1
            losses[start + first : start + len(loss)] = loss[first:]
            choices[start + first : start + len(loss)] = choice[first:]
    return losses, choices


def perplexity(model: GPT2LMHeadModel, tokens: Tokens) -> float:
    """exp of the mean loss of `predictions`."""
    return perplexity_of(predictions(model, tokens)[0])


def perplexity_of(losses: npt.NDArray[np.float32]) -> float:
    """exp of the mean of losses in nats."""
    return math.exp(float(np.mean(losses, dtype=np.float64)))


def unigram_perplexity(training: Tokens, held_out: Tokens, vocabulary: int) -> float:
    """What knowing the tokens' frequencies alone would give (each counted once more than it occurs)."""
    counts = np.bincount(training, minlength=vocabulary) + 1
    return math.exp(-float(np.mean(np.log(counts / counts.sum())[held_out[1:]])))


@torch.inference_mode()
def drafting_agreement(small: GPT2LMHeadModel, large: GPT2LMHeadModel, tokens: Tokens, prompts: int = 64) -> float:
    """How often the small model's likeliest next token is the one that the large one writes.

    The large one continues `prompts` places of `tokens`, each as long as a quarter of the context, by as much again.
    """
    length = large.config.n_positions // 4
    starts = np.arange(prompts) * (len(tokens) - length) // prompts
    rows = torch.from_numpy(tokens[starts[:, None] + np.arange(length)])
    written = large.generate(
        rows,
        attention_mask=torch.ones_like(rows),
        max_new_tokens=length,
        min_new_tokens=length,  # the end of the text is no choice, so that all rows stay equally long
        do_sample=False,
    )
    choices = small(written[:, :-1], use_cache=False).logits.argmax(-1)[:, length - 1 :]
    return float((choices == written[:, length:]).float().mean())
