"""Train one of the small models of the agents' examples.

    python examples/train_agent_models.py qa-planner --out DIRECTORY

`qa-planner` plans for questions in the manner of ParallelQA, takes turns of ReAct, and calls functions; `game-planner`
plans the Game of 24; `thinker` is the model of Tree of Thoughts, which proposes steps and values states; `shopper`
plans in the shop, and takes turns in it. All are of LLaMA's architecture, and are trained from nothing on conversations
as the agents have them. DIRECTORY becomes a checkpoint as transformers reads it, with float16 weights, a tokenizer and
a chat template.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import msgspec
from agent_models.network import Shape
from agent_models.training import Figures, Recipe, train
from agent_patterns.game_conversations import game_conversations
from agent_patterns.shop_conversations import shop_conversations
from agent_patterns.thoughts import thought_conversations
from language_model import Length
from planner.conversations import parallel_qa
from train_language_models import check_output, run_command

# A word with the space before it, two digits, or signs with the spaces between them and before a digit.
QUESTIONS = r" ?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+(?: [^\s\p{L}\p{N}]+)*(?: (?=\p{N})|\n)?|\s"
# The name of a call, a number and a word are one token each where they are frequent, so that plans are short.
PATTERNS = r' \(left:|\. [a-z_]+\("?| ?\d{1,3}| ?[A-Za-z]+| ?[^\sA-Za-z\d]+\n?|\s+'
# The same with signs as in `QUESTIONS`: a step reads alike in a list of states, where a quote is before it, and in the
# answer, so that it can be copied.
STEPS = r'\. [a-z_]+\("?| ?\p{N}{1,3}| ?\p{L}+| ?[^\s\p{L}\p{N}]+(?: [^\s\p{L}\p{N}]+)*(?: (?=\p{N})|\n)?|\s+'

RECIPES = {
    "qa-planner": Recipe(parallel_qa, QUESTIONS, vocabulary=1280, context=2048, steps=3000, shape=Shape()),
    "game-planner": Recipe(
        game_conversations, STEPS, vocabulary=640, context=1536, steps=2500, shape=Shape(layers=3), pool=4000
    ),
    "thinker": Recipe(
        thought_conversations,
        PATTERNS,
        vocabulary=640,
        context=512,
        steps=2500,
        shape=Shape(width=256, inner=640, learning_rate=3e-3),
    ),
    "shopper": Recipe(
        shop_conversations, PATTERNS, vocabulary=1000, context=1536, steps=2500, shape=Shape(layers=2), pool=4000
    ),
}


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.argument("name", type=click.Choice(list(RECIPES)))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory to make.")
@click.option("--steps", type=click.IntRange(min=1), help="Steps to train for; default: by the model.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Train for so long instead.")
@click.option("--start", type=click.Path(exists=True, path_type=Path), help="Continue from this checkpoint.")
@click.option("--learning-rate", type=click.FloatRange(min=0), help="The highest; default: by the model.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of weights and conversations.")
@click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True, help="Each trains on its own.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as one JSON object on one line.")
def command(
    name: str,
    out: Path,
    steps: int | None,
    minutes: float | None,
    start: Path | None,
    learning_rate: float | None,
    seed: int,
    processes: int,
    as_json: bool,
) -> None:
    """Train, judge, write and print."""
    check_output(out)
    recipe = RECIPES[name]
    if learning_rate is not None:
        recipe = replace(recipe, shape=replace(recipe.shape, learning_rate=learning_rate))
    figures = train(out, recipe, Length(steps or recipe.steps, minutes and minutes * 60), seed, processes, start)
    click.echo(msgspec.json.encode(figures).decode() if as_json else report(figures))


def report(figures: Figures) -> str:
    """For people."""
    return (
        f"{figures.parameters:,} parameters, {figures.steps} steps, {figures.conversations:,} conversations, "
        f"{figures.tokens:,} tokens, {figures.seconds:.0f} s; held-out loss {figures.loss:.4f}, "
        f"{figures.right:.1%} of the conversations right"
    )


if __name__ == "__main__":
    run_command("train_agent_models.py", command)
