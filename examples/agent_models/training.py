"""Training small models on conversations, on the cores of a CPU."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import click
import msgspec
import numpy as np
import torch
from language_model import GRADIENT_NORM, Length, rate
from torch import Tensor
from torch.nn import functional
from train_language_models import save
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from agent_models.conversation import IGNORED, SORTED_TOGETHER, Conversation, Row, chat_tokenizer, rows
from agent_models.network import Shape, new_model
from intaglio import atomic_directory

TOKENIZED = 1500  # conversations that the tokenizer is made for
REPORTS = 20  # of the progress
FIGURES = "figures.json"
JUDGED_TOKENS = 4096  # at a time
JUDGED = 60  # conversations of other random numbers that the model is judged on


@dataclass(frozen=True)
class Recipe:
    """A model, and its training data."""

    conversations: Callable[[Random], Iterator[Conversation]]  # without end
    pieces: str  # see `chat_tokenizer`
    vocabulary: int
    context: int
    steps: int
    shape: Shape
    pool: int | None = None  # conversations that a process makes and repeats, where making them takes long


class Figures(msgspec.Struct):
    """The measurements."""

    parameters: int
    vocabulary: int
    steps: int
    conversations: int
    tokens: int
    seconds: float
    loss: float  # nats for each token of the assistant, of conversations that were not trained on
    right: float  # share of those conversations in which each token of the assistant is the likeliest


def train(
    out: Path, recipe: Recipe, length: Length, seed: int, processes: int = 1, start: Path | None = None
) -> Figures:
    """Train a model, or the one in `start` further, and write the directory `out`, whole or not at all.

    Each process reads conversations of its own with one thread, and all take the mean of their gradients: threads would
    wait for each other in every one of the many small products.
    """
    with atomic_directory(out) as directory:
        if start is None:
            examples = itertools.islice(recipe.conversations(Random(f"tokenizer {seed}")), TOKENIZED)  # noqa: S311
            tokenizer = chat_tokenizer(list(examples), recipe.pieces, recipe.vocabulary, recipe.context)
        else:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(start)
        tokenizer.save_pretrained(directory)
        with tempfile.TemporaryDirectory() as folder:
            work = Work(directory, Path(folder), recipe, length, seed, processes, start)
            if processes == 1:
                run_process(0, work)
            else:
                torch.multiprocessing.spawn(run_process, (work,), processes)
            return msgspec.json.decode((work.folder / FIGURES).read_bytes(), type=Figures)


@dataclass(frozen=True)
class Work:
    """The common data of a training's processes."""

    directory: Path  # of the checkpoint
    folder: Path  # for files between them
    recipe: Recipe
    length: Length
    seed: int
    processes: int
    start: Path | None  # a checkpoint to continue from


def run_process(rank: int, work: Work) -> None:
    """Train in one of the processes; the first one judges and writes."""
    recipe = work.recipe
    if work.processes > 1:
        torch.set_num_threads(1)
        store = f"file://{work.folder / 'store'}"
        torch.distributed.init_process_group("gloo", store, rank=rank, world_size=work.processes)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(work.directory)
    torch.manual_seed(work.seed)
    if work.start is None:
        model = new_model(recipe.shape, len(tokenizer), recipe.context, tokenizer.eos_token_id)
    else:
        model = LlamaForCausalLM.from_pretrained(work.start, dtype=torch.float32)
    others = rows(tokenizer, recipe.conversations(Random(f"judged {work.seed}")))  # noqa: S311
    judged = [*itertools.islice(others, JUDGED)]
    stream = rows(tokenizer, recipe.conversations(Random(f"training {work.seed} {rank}")))  # noqa: S311
    if recipe.pool is not None:
        stream = itertools.cycle(itertools.islice(stream, recipe.pool))
    steps, count, tokens, seconds = fit(model, recipe.shape, work.length, stream, judged, rank == 0)
    if rank == 0:
        save(model, tokenizer, work.directory)
        written = LlamaForCausalLM.from_pretrained(work.directory, dtype=torch.float32).eval()
        loss, right = judge(written, judged)
        parameters = sum(value.numel() for value in model.parameters())
        read = count * work.processes, tokens * work.processes  # the others read about as many
        figures = Figures(parameters, len(tokenizer), steps, *read, round(seconds, 1), loss, right)
        (work.folder / FIGURES).write_bytes(msgspec.json.encode(figures))


def averaged(model: LlamaForCausalLM, seconds: float) -> float:
    """Give all processes the mean of their gradients; return the mean of their `seconds`."""
    if not torch.distributed.is_initialized():
        return seconds
    gradients = [value.grad for value in model.parameters() if value.grad is not None]
    flat = torch.cat([*(each.flatten() for each in gradients), torch.tensor([seconds])])
    torch.distributed.all_reduce(flat)
    flat /= torch.distributed.get_world_size()
    for gradient, mean in zip(gradients, flat[:-1].split([each.numel() for each in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))
    return float(flat[-1])


def batches(stream: Iterator[Row], tokens: int, seed: int = 0) -> Iterator[list[Row]]:
    """Yield rows of about one length together, at most `tokens` with padding."""
    generator = Random(seed)  # noqa: S311
    while held := sorted(itertools.islice(stream, SORTED_TOGETHER), key=lambda row: len(row.ids)):
        groups: list[list[Row]] = [[]]
        for row in held:
            if groups[-1] and (len(groups[-1]) + 1) * len(row.ids) > tokens:
                groups.append([])
            groups[-1].append(row)
        generator.shuffle(groups)
        yield from groups


def fit(
    model: LlamaForCausalLM, shape: Shape, length: Length, stream: Iterator[Row], judged: Sequence[Row], tells: bool
) -> tuple[int, int, int, float]:
    """Train `model` in place; return the steps, conversations and tokens, and the seconds that it took.

    `tells`: print the progress.
    """
    by_kind = optimizers(model)
    started, losses, count, tokens, part = time.monotonic(), list[float](), 0, 0, 0.0
    for step, batch in enumerate(batches(stream, shape.tokens), 1):
        for group in itertools.chain.from_iterable(optimizer.param_groups for optimizer in by_kind):
            group["lr"] = shape.learning_rate * rate(part)
        loss = losses_of(model, batch)[0].mean()
        loss.backward()
        seconds, before = averaged(model, time.monotonic() - started), part
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
        for optimizer in by_kind:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        count, tokens = count + len(batch), tokens + sum(len(row.ids) for row in batch)
        part = min(1.0, length.part(step, seconds))
        if tells and int(part * REPORTS) > int(before * REPORTS):
            held_out, right = judge(model, judged)
            click.echo(
                f"step {step}, loss {np.mean(losses):.4f}, held-out loss {held_out:.4f}, {right:.1%} right, "
                f"{seconds * (1 / part - 1) / 60:.1f} minutes left",
                err=True,
            )
            losses.clear()
        if part == 1:
            break
    return step, count, tokens, time.monotonic() - started


def optimizers(model: LlamaForCausalLM) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Muon for the matrices that multiply states, AdamW for the embedding, biases and norms."""
    matrices, others = list[Tensor](), list[Tensor]()
    for name, value in model.named_parameters():
        (others if value.ndim == 1 or "embed" in name else matrices).append(value)
    return (
        torch.optim.Muon(matrices, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, weight_decay=0.0, betas=(0.9, 0.98), fused=True),
    )


def losses_of(model: LlamaForCausalLM, batch: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy in nats of each token of the assistant, and whether it is the likeliest.

    Both are [tokens of the assistant], those of a row after those of the row before.
    """
    longest = max(len(row.ids) for row in batch)
    ids = torch.tensor([row.ids + [0] * (longest - len(row.ids)) for row in batch])
    labels = torch.tensor([row.labels + [IGNORED] * (longest - len(row.ids)) for row in batch])[:, 1:]
    written = labels != IGNORED
    states = model.model(ids[:, :-1], use_cache=False).last_hidden_state[written]  # padding is to the right
    logits, wanted = model.lm_head(states), labels[written]
    return functional.cross_entropy(logits, wanted, reduction="none"), logits.argmax(-1) == wanted


@torch.inference_mode()
def judge(model: LlamaForCausalLM, judged: Sequence[Row]) -> tuple[float, float]:
    """Return the mean loss of a token of the assistant, and the share of conversations without a wrong one."""
    losses, right = list[float](), 0
    for batch in batches(iter(judged), JUDGED_TOKENS):
        loss, likeliest = losses_of(model, batch)
        losses += loss.tolist()
        counts = [sum(label != IGNORED for label in row.labels) for row in batch]
        right += sum(bool(each.all()) for each in likeliest.split(counts))
    return float(np.mean(losses)), right / len(judged)
