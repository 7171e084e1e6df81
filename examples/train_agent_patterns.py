"""Train the small models of the agents' examples, on conversations that are recorded from the agents themselves.

    python examples/train_agent_patterns.py planner --out DIRECTORY
    python examples/train_agent_patterns.py thinker --out DIRECTORY
    python examples/train_agent_patterns.py shopper --out DIRECTORY

`planner` writes plans and decisions for the Game of 24; `thinker` is the model of Tree of Thoughts: it proposes steps,
and values states; `shopper` writes plans, decisions and turns for the shop. All are checkpoints of LLaMA's architecture
with float16 weights and a chat template, as they lie in examples/agent_patterns. Only what a model writes is trained,
not what it reads.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import click
import torch
from agent_patterns.game_conversations import game_conversations, game_openings
from agent_patterns.game_of_24 import games
from agent_patterns.shop_conversations import shop_conversations, shop_openings
from agent_patterns.thoughts import Conversation, thought_conversations
from language_model import END, GRADIENT_NORM, Length, rate
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from train_language_models import check_output, run_command, save
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from intaglio.files import atomic_directory

ROLES = ("system", "user", "assistant")
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% if message.role == 'assistant' %}" + END + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# The name of a call, a number and a word are one token each where they are frequent, so that plans are short.
PIECES = r' \(left:|\. [a-z_]+\("?| ?\d{1,3}| ?[A-Za-z]+| ?[^\sA-Za-z\d]+\n?|\s+'
OPENINGS = 12  # for each conversation
IGNORED = -100  # label of what a model reads
Encoded = tuple[list[int], list[int]]  # tokens, and the labels of the next ones


@dataclass(frozen=True)
class Recipe:
    """A model and its training."""

    conversations: Callable[[int], Iterator[Conversation]]
    pool: int  # conversations that are made
    openings: Callable[[int], Iterator[Conversation]] | None  # short ones
    vocabulary: int
    context: int
    layers: int
    width: int
    heads: int
    steps: int
    learning_rate: float
    batch: int = 1536  # tokens of a step, with padding


def planner_openings(seed: int) -> Iterator[Conversation]:
    """Yield first turns of the planner of the game."""
    return game_openings(games()[0], seed)


def planner_conversations(seed: int) -> Iterator[Conversation]:
    """Yield conversations of the planner of the game."""
    return game_conversations(games()[0], seed)


def thinker_conversations(seed: int) -> Iterator[Conversation]:
    """Yield requests of Tree of Thoughts."""
    return thought_conversations(games()[0], seed)


RECIPES = {
    "planner": Recipe(
        planner_conversations,
        1000,
        planner_openings,
        1000,
        1536,
        layers=3,
        width=128,
        heads=4,
        steps=5000,
        learning_rate=3e-3,
    ),
    "shopper": Recipe(
        shop_conversations,
        1500,
        shop_openings,
        1000,
        1536,
        layers=3,
        width=128,
        heads=4,
        steps=3000,
        learning_rate=3e-3,
    ),
    "thinker": Recipe(
        thinker_conversations, 40000, None, 640, 512, layers=3, width=192, heads=4, steps=6000, learning_rate=3e-3
    ),
}


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.argument("name", type=click.Choice(list(RECIPES)))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory to make.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of data and weights.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Train for so long instead of the steps.")
@click.option("--start", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Weights to go on from.")
@click.option("--threads", type=click.IntRange(min=1), help="Processor threads; default: torch's.")
def command(name: str, out: Path, seed: int, minutes: float | None, start: Path | None, threads: int | None) -> None:
    """Record, train, write."""
    check_output(out)
    if threads:
        torch.set_num_threads(threads)
    recipe = RECIPES[name]
    conversations = list(islice(recipe.conversations(seed), recipe.pool))
    if recipe.openings is not None:
        conversations += islice(recipe.openings(seed), OPENINGS * recipe.pool)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(start) if start else tokenizer_of(conversations, recipe)
    encoded = [encode(tokenizer, each) for each in conversations]
    longest = max(len(tokens) for tokens, _ in encoded)
    click.echo(f"{len(encoded)} conversations, {sum(len(t) for t, _ in encoded)} tokens, longest {longest}", err=True)
    torch.manual_seed(seed)
    model = new_model(recipe, tokenizer)
    if start is not None:
        model.load_state_dict(LlamaForCausalLM.from_pretrained(start, dtype=torch.float32).state_dict())
    loss, last = train(model, recipe, encoded, Length(recipe.steps, minutes and 60 * minutes), seed)
    with atomic_directory(out) as directory:
        save(model, tokenizer, directory)
    parameters = sum(each.numel() for each in model.parameters())
    shown = {"name": name, "parameters": parameters, "steps": last, "nats": loss}
    click.echo(json.dumps(shown))


def tokenizer_of(conversations: Sequence[Conversation], recipe: Recipe) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of these texts, with a token for each role and the chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary,
        special_tokens=[END, *(f"<|{role}|>" for role in ROLES)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (str(message.content) for conversation in conversations[:2000] for message in conversation)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        model_max_length=recipe.context,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )


def encode(tokenizer: PreTrainedTokenizerFast, conversation: Conversation) -> Encoded:
    """Return the tokens of a conversation as the template writes it, and which of them the model has to write."""
    ids, labels = list[int](), list[int]()
    for message in conversation:
        role = tokenizer.convert_tokens_to_ids(f"<|{message.role}|>")
        content = tokenizer.backend_tokenizer.encode(str(message.content)).ids
        written = message.role == "assistant"
        if written:
            content = [*content, tokenizer.eos_token_id]
        ids += [role, *content]
        labels += [IGNORED, *(content if written else [IGNORED] * len(content))]
    return ids, labels


def new_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return an untrained model, float32, from torch's seed."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=recipe.width,
            intermediate_size=2 * recipe.width,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.heads,
            max_position_embeddings=recipe.context,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def train(
    model: LlamaForCausalLM, recipe: Recipe, encoded: Sequence[Encoded], length: Length, seed: int
) -> tuple[float, int]:
    """Train `model` in place; return the mean loss of the last steps in nats a token, and the number of steps."""
    matrices = [each for each in model.parameters() if each.ndim == 2]
    others = [each for each in model.parameters() if each.ndim != 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98), fused=True)
    began, recent, part, step = time.monotonic(), list[float](), 0.0, 0
    model.train()
    for step, (tokens, labels) in enumerate(batches(encoded, recipe.batch, seed), 1):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * rate(part)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.model(tokens[:, :-1], use_cache=False).last_hidden_state
            written = labels[:, 1:] != IGNORED
            logits = model.lm_head(hidden[written])  # [written tokens, vocabulary]: of what is read, none are needed
        loss = functional.cross_entropy(logits.float(), labels[:, 1:][written])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
        optimizer.step()
        optimizer.zero_grad()
        recent = [*recent[-49:], loss.item()]
        spent = time.monotonic() - began
        part = min(1.0, length.part(step, spent))
        if step % 50 == 0:
            left = spent * (1 / part - 1) / 60
            click.echo(f"step {step}, loss {math.fsum(recent) / len(recent):.4f}, {left:.1f} minutes left", err=True)
        if part == 1:
            break
    model.eval()
    return math.fsum(recent) / len(recent), step


def batches(encoded: Sequence[Encoded], most: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield tokens and labels, int64 [rows, longest], without end; rows of about the same length are together."""
    generator = random.Random(seed)  # noqa: S311
    while True:
        ordered = sorted(encoded, key=lambda each: len(each[0]) + generator.random() * 40)
        groups: list[list[Encoded]] = [[]]
        for each in ordered:
            if groups[-1] and (len(groups[-1]) + 1) * len(each[0]) > most:
                groups.append([])
            groups[-1].append(each)
        generator.shuffle(groups)
        yield from map(_padded, groups)


def _padded(rows: Sequence[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(tokens) for tokens, _ in rows)
    tokens = torch.tensor([each + [0] * (width - len(each)) for each, _ in rows])
    labels = torch.tensor([each + [IGNORED] * (width - len(each)) for _, each in rows])
    return tokens, labels


if __name__ == "__main__":
    run_command("train_agent_patterns.py", command)
