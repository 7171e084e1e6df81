"""Train a small language model to plan: which tools to call for a question, and what to answer from their results.

    python examples/train_planner.py --out DIRECTORY

The model is of LLaMA's architecture, and is trained from nothing on questions about made-up entities in three forms:
plans and joins of LLMCompiler, turns of ReAct, and function calls. DIRECTORY becomes a checkpoint as transformers reads
it, with float16 weights, a tokenizer and a chat template. examples/planner/README.md describes the one in
examples/planner/model.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

import click
import msgspec
import numpy as np
import torch
from language_model import GRADIENT_NORM, Length, rate
from planner.conversations import Conversation, parallel_qa
from planner.network import Shape, new_model
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional
from train_language_models import check_output, run_command, save
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from intaglio.files import atomic_directory

# Further tasks and their shares of the conversations.
TASKS: Mapping[Callable[[Random], Iterator[Conversation]], float] = {parallel_qa: 1.0}

TEMPLATE = Path(__file__).parent / "planner" / "chat_template.jinja"
END, ASSISTANT = "<|end|>", "<|assistant|>"
SPECIAL = (END, "<|system|>", "<|user|>", ASSISTANT, "<|tool|>", "<|tools|>", "<tool_call>", "</tool_call>")
# A word with the space before it, two digits, or signs with the spaces between them and before a digit.
PIECES = r" ?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+(?: [^\s\p{L}\p{N}]+)*(?: (?=\p{N})|\n)?|\s"
TOKENIZED = 6000  # conversations that the tokenizer is made for
VOCABULARY = 1280
CONTEXT = 2048
STEPS = 3000
REPORTS = 20  # of the progress
FIGURES = "figures.json"
JUDGED_TOKENS = 4096  # at a time
JUDGED = 60  # conversations of other random numbers that the model is judged on
SORTED_TOGETHER = 512  # conversations that are sorted by length, so that those of a batch need little padding
IGNORED = -100  # the label that cross-entropy passes over


class Row(NamedTuple):
    """A conversation in tokens."""

    ids: list[int]
    labels: list[int]  # the ids where the assistant writes, else `IGNORED`


class Figures(msgspec.Struct):
    """What was measured."""

    parameters: int
    vocabulary: int
    steps: int
    conversations: int
    tokens: int
    seconds: float
    loss: float  # nats for each token of the assistant, of conversations that were not trained on
    right: float  # share of those conversations in which each token of the assistant is the likeliest


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory to make.")
@click.option("--steps", type=click.IntRange(min=1), default=STEPS, show_default=True, help="Steps to train for.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Train for so long instead.")
@click.option("--start", type=click.Path(exists=True, path_type=Path), help="Go on from this checkpoint.")
@click.option(
    "--learning-rate", type=click.FloatRange(min=0), default=Shape.learning_rate, show_default=True, help="Highest."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of weights and conversations.")
@click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True, help="Each trains on its own.")
@click.option("--json", "as_json", is_flag=True, help="Print what was measured as one JSON object on one line.")
def command(
    out: Path,
    steps: int,
    minutes: float | None,
    start: Path | None,
    learning_rate: float,
    seed: int,
    processes: int,
    as_json: bool,
) -> None:
    """Train, judge, write and print."""
    check_output(out)
    figures = train_planner(
        out, Shape(learning_rate=learning_rate), Length(steps, minutes and minutes * 60), seed, processes, start
    )
    click.echo(msgspec.json.encode(figures).decode() if as_json else report(figures))


def report(figures: Figures) -> str:
    """For people."""
    return (
        f"{figures.parameters:,} parameters, {figures.steps} steps, {figures.conversations:,} conversations, "
        f"{figures.tokens:,} tokens, {figures.seconds:.0f} s; held-out loss {figures.loss:.4f}, "
        f"{figures.right:.1%} of the conversations right"
    )


def train_planner(
    out: Path, shape: Shape, length: Length, seed: int, processes: int = 1, start: Path | None = None
) -> Figures:
    """Train a model, or the one in `start` further, and write the directory `out`, whole or not at all.

    Each process reads conversations of its own with one thread, and all take the mean of their gradients: threads would
    wait for each other in every one of the many small products.
    """
    examples = itertools.islice(conversations(Random(f"tokenizer {seed}")), TOKENIZED)  # noqa: S311
    with atomic_directory(out) as directory:
        if start is None:
            planner_tokenizer(list(examples)).save_pretrained(directory)
        else:
            PreTrainedTokenizerFast.from_pretrained(start).save_pretrained(directory)
        with tempfile.TemporaryDirectory() as folder:
            work = Work(directory, Path(folder), shape, length, seed, processes, start)
            if processes == 1:
                run_process(0, work)
            else:
                torch.multiprocessing.spawn(run_process, (work,), processes)
            return msgspec.json.decode((work.folder / FIGURES).read_bytes(), type=Figures)


@dataclass(frozen=True)
class Work:
    """What the processes of a training have in common."""

    directory: Path  # of the checkpoint
    folder: Path  # for files between them
    shape: Shape
    length: Length
    seed: int
    processes: int
    start: Path | None  # a checkpoint to go on from


def run_process(rank: int, work: Work) -> None:
    """Train in one of the processes; the first one judges and writes."""
    if work.processes > 1:
        torch.set_num_threads(1)
        store = f"file://{work.folder / 'store'}"
        torch.distributed.init_process_group("gloo", store, rank=rank, world_size=work.processes)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(work.directory)
    torch.manual_seed(work.seed)
    if work.start is None:
        model = new_model(work.shape, len(tokenizer), CONTEXT, tokenizer.eos_token_id)
    else:
        model = LlamaForCausalLM.from_pretrained(work.start, dtype=torch.float32)
    judged = [*itertools.islice(rows(tokenizer, Random(f"judged {work.seed}")), JUDGED)]  # noqa: S311
    stream = rows(tokenizer, Random(f"training {work.seed} {rank}"))  # noqa: S311
    steps, count, tokens, seconds = fit(model, work.shape, work.length, stream, judged, rank == 0)
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


def conversations(random: Random) -> Iterator[Conversation]:
    """Yield conversations of all tasks without end."""
    streams = [(task(Random(random.random())), share) for task, share in TASKS.items()]  # noqa: S311
    while True:
        stream, _ = random.choices(streams, [share for _, share in streams])[0]
        yield next(stream)


def planner_tokenizer(examples: Sequence[Conversation]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE in which numbers are pieces of two digits, and words begin with their space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        extra_special_tokens=list(SPECIAL[1:]),
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = TEMPLATE.read_text(encoding="utf-8")
    texts = (text(wrapped, example) for example in examples)
    wrapped.backend_tokenizer.train_from_iterator(texts, trainer)
    return wrapped


def text(tokenizer: PreTrainedTokenizerFast, conversation: Conversation) -> str:
    """Return a conversation as the chat template writes it."""
    tools = [{"type": "function", "function": {"name": name}} for name in conversation.tools]
    messages = [message.as_variable() for message in conversation.messages]
    return str(tokenizer.apply_chat_template(messages, tools=tools or None, tokenize=False))


def rows(tokenizer: PreTrainedTokenizerFast, random: Random) -> Iterator[Row]:
    """Yield conversations as tokens without end, none longer than the context."""
    end, assistant = tokenizer.convert_tokens_to_ids([END, ASSISTANT])
    stream = conversations(random)
    while True:
        texts = [text(tokenizer, each) for each in itertools.islice(stream, 256)]
        for encoded in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False):
            labels, writes = [], False
            for token in encoded.ids:
                labels.append(token if writes else IGNORED)
                writes = token == assistant or (writes and token != end)
            if len(labels) <= CONTEXT:
                yield Row(encoded.ids, labels)


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


if __name__ == "__main__":
    run_command("train_planner.py", command)
