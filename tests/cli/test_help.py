"""The help fits the terminal and is grouped; a misspelt name suggests the right one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from terminal import on_terminal, without_styles

from intaglio import cli as intaglio_cli
from intaglio.cli import STAGES, VERBS, cli
from intaglio.cli.options.choices import OneOf, RecipeName
from intaglio.cli.running.command import GROUP, Verb, commands
from intaglio.display.nearest import did_you_mean, nearest
from intaglio.graph_passes.recipes.recipes import RECIPES
from intaglio.targets import TARGETS

Run = Callable[..., tuple[int, str, str]]
COMMANDS = dict(commands(cli, click.Context(cli)))


def options() -> Iterator[tuple[str, click.Option]]:
    """Each option of each command with the name of the command."""
    for name, command in COMMANDS.items():
        yield from ((name, each) for each in command.params if isinstance(each, click.Option))


def help_of(name: str, width: int) -> str:
    """The help of a command at a width."""
    command, context = COMMANDS[name], click.Context(cli, info_name="intaglio", terminal_width=width - 2)
    return command.get_help(click.Context(command, parent=context, info_name=name))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["exprot"], "No such command 'exprot'. Did you mean 'export'?"),
        (["Export"], "Did you mean 'export'?"),
        (["tune_decoding"], "Did you mean 'tune-decoding'?"),
        (["prune"], "Did you mean 'train prune'?"),
        (["train", "hidden_transfer"], "Did you mean 'hidden-transfer'?"),
        (["validate", "b", "--recipe", "float16"], "No such option '--recipe'. It is an option of `compress`."),
        (["--recipe", "x"], "It is an option of `compress`."),
        (["compress", "b", "-o", "c", "--perplexity", "x"], "It is an option of `validate`."),
        (["inspect", "b", "--temperature", "1"], "It is an option of `generate`, `chat`, `bench`."),
        (["inspect", "b", "-n", "1"], "It is an option of"),
        (["inspect", "b", "--threads", "1"], " more."),
        (["compress", "b", "-o", "c", "--reciep", "x"], "Did you mean '--recipe'?"),
        (["inspect", "b", "--reciep", "x"], "Did you mean '--recipe' of `compress`?"),
        (["serve", "b", "--recepie", "x"], "Did you mean '--recipe' of `compress`?"),
        (["run", "b", "--batchsize", "3"], "Did you mean '--batch-size'?"),
        (["run", "b", "--target", "ort_cpu"], "'ort_cpu': expected one of ort-cpu, "),
        (["run", "b", "--target", "ort-cup"], "Did you mean 'ort-cpu'?"),
        (["generate", "b", "x", "--strategy", "speculativ"], "Did you mean 'speculative'?"),
        (["build", "b", "--target", "tensorrt-rtx", "--gpu", "h1000"], "Did you mean 'h100'?"),
        (["export", "b", "-o", "c", "--dtype", "float61"], "Did you mean 'float16'?"),
        (["compress", "b", "-o", "c", "--recipe", "flaot16"], "Did you mean 'float16'?"),
        (["recipes", "lut-spares"], "Did you mean 'lut-sparse'?"),
        (["agent", "q", "--tools", "calculate", "--model", "b", "--planner", "reakt"], "Did you mean 'react'?"),
    ],
)
def test_misspelt_name_suggests_the_right_one(arguments: list[str], message: str, intaglio: Run) -> None:
    code, out, err = intaglio(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_unknown_name_gets_no_suggestion(intaglio: Run) -> None:
    assert intaglio("xyzzy")[2] == "intaglio: No such command 'xyzzy'. See: intaglio --help\n"
    assert intaglio("inspect", "b", "--xyzzy")[2] == (
        "intaglio: No such option '--xyzzy'. See: intaglio inspect --help\n"
    )


def test_option_without_value_names_the_help_of_its_command(intaglio: Run) -> None:
    assert intaglio("generate", "b", "--strategy")[2].endswith("See: intaglio generate --help\n")


def test_unknown_option_names_the_commands_that_have_it(intaglio: Run) -> None:
    """For every option and a command without it: the named commands have the option."""
    of: dict[str, set[str]] = {}
    for name, option in ((name, option) for name, option in options() if not getattr(option, "hidden", False)):
        for spelled in option.opts:
            of.setdefault(spelled, set()).add(name)
    for spelled, having in of.items():
        lacking = next((name for name in ("tune", "inspect", "completion") if name not in having), None)
        if lacking is None:  # every command has it
            assert having == set(COMMANDS)
            continue
        err = intaglio(lacking, spelled)[2]
        named = set(re.findall(r"`([\w -]+)`", err))
        assert named and named <= having, err


def test_nearest_ignores_the_case_of_letters() -> None:
    assert nearest("A100", ["a100", "t4"]) == "a100"
    assert nearest("xyzzy", ["a100", "t4"]) is None
    assert did_you_mean("xyzzy", ["a100"]) == ""


def test_named_values_are_choices() -> None:
    """No option of such a name is free text in any command."""
    kinds = {(option.name, type(option.type)) for _, option in options()}
    named = {"target", "dtype", "strategy", "planner", "metric", "api", "gpus", "by", "schedule", "log_format"}
    assert {name for name, kind in kinds if kind is OneOf} >= named
    assert {(name, kind) for name, kind in kinds if name in named and kind is not OneOf} == set()
    assert {kind for _, kind in kinds if issubclass(kind, click.Choice)} == {OneOf}
    assert {kind for name, kind in kinds if name == "recipe"} == {RecipeName}


def test_choices_are_case_insensitive() -> None:
    assert OneOf(TARGETS).convert("ORT-CPU", None, None) == "ort-cpu"


def test_top_level_help_lists_each_verb_once_by_stage_and_first_steps(intaglio: Run) -> None:
    code, out, _ = intaglio("--help")
    assert code == 0
    places = [out.index(f"\n{stage}:\n") for stage in STAGES]
    assert places == sorted(places)
    assert all(len(re.findall(rf"^  {verb} ", out, flags=re.MULTILINE)) == 1 for verb in VERBS)
    assert max(map(len, out.splitlines())) <= 80
    assert all(f"{line}\n" in out for line in VERBS.values())
    assert out.index("Begin with:") < out.index("  intaglio export ") < out.index("  intaglio run ")


def test_compress_help_lists_one_recipe_per_line(intaglio: Run) -> None:
    _, out, _ = intaglio("compress", "--help")
    for name, recipe in RECIPES.items():
        star = r" \*" if recipe.needs else ""
        assert re.search(rf"^  {name} +{re.escape(recipe.does)}{star}$", out, flags=re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_grouped_with_output_options_last(name: str) -> None:
    shown = help_of(name, 80)
    sections = re.findall(r"^(\w[^:\n]*):$", shown, flags=re.MULTILINE)
    assert sections[-1] == "Output" and len(sections) == len(set(sections))
    output = shown[shown.index("\nOutput:\n") :]
    assert "  -q, --quiet " in output and "  -v, --verbose " in output and "--help " in output
    many = [option for option in COMMANDS[name].params if getattr(option, GROUP, None) is None]
    assert len(many) <= 8, f"group them with `section`: {[option.name for option in many]}"


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_the_terminal_and_splits_no_word(name: str, width: int) -> None:
    shown = help_of(name, width)
    words = set(re.findall(r"[\w-]+", help_of(name, 1000)))
    long = [line for line in shown.splitlines() if len(line) > width and "   " not in line.strip()]
    assert [line for line in long if not re.search(rf"\S{{{width - 30},}}|\".*\"|'.*'|\[.*\]", line)] == []
    assert {word for word in re.findall(r"[\w-]+", shown) if word.endswith("-") and word != "-"} <= words


def test_long_examples_break_between_options_and_stay_valid() -> None:
    shown = help_of("agent", 80)
    epilog = COMMANDS["agent"].epilog
    assert epilog is not None and " \\\n" in shown
    joined = re.sub(r" \\\n +", " ", shown)
    assert all(line.strip() in joined for line in epilog.splitlines() if line.startswith("  intaglio"))


def test_every_command_has_quiet_and_verbose_options() -> None:
    for name, command in COMMANDS.items():
        flags = {flag for option in command.params if isinstance(option, click.Option) for flag in option.opts}
        assert isinstance(command, Verb) and {"-q", "--quiet", "-v", "--verbose"} <= flags, name


@pytest.mark.parametrize("verb", ["run", "generate", "chat", "serve", "validate", "bench", "agent"])
def test_commands_that_run_models_have_a_threads_option(verb: str) -> None:
    assert any("--threads" in option.opts for option in COMMANDS[verb].params)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_recipe_table_fits_the_terminal(columns: int) -> None:
    shown = without_styles(on_terminal("-m", "intaglio", "recipes", columns=columns, errors=True))
    assert max(map(len, shown.splitlines())) <= columns
    words = set(shown.replace(",", " ").split())
    assert set(RECIPES) <= words and {"MiniLM", "TensorRT:", "examples/language_models"} <= words


def test_recipes_in_a_pipe_are_one_line_each() -> None:
    command = [sys.executable, "-P", "-m", "intaglio", "recipes"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line for line in found.stdout.splitlines() if line.split()[:1] and line.split()[0] in RECIPES]
    assert len(rows) == len(RECIPES)
    assert found.stderr.count("\n") == 1


def test_every_option_named_in_texts_exists() -> None:
    """Help, errors and notices only name existing options."""
    known = {flag for _, option in options() for flag in (*option.opts, *option.secondary_opts)}
    sources = Path(intaglio_cli.__file__).parent.rglob("*.py")
    named = {flag for path in sources for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", path.read_text())}
    assert named - known - {"--help", "--version"} == set()
