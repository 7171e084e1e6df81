"""A strategy's options are declared by its dataclass alone, for the command line and Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from intaglio.cli import cli
from intaglio.cli.options import generation as generation_options
from intaglio.cli.tune_decoding import tune_decoding_command
from intaglio.errors import UsageError
from intaglio.runtime import strategies
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests import request, strategy_choice
from intaglio.runtime.strategies import STRATEGIES, BigLittleDecoder, NGram, Strategy, contract
from intaglio.runtime.strategies.options import option, options_by_name, options_of
from intaglio.runtime.strategies.verification import commit, verify


def documented() -> type[Strategy]:
    """The strategy that docs/extending.md shows, from its text."""
    page = (Path(__file__).parents[3] / "docs" / "extending.md").read_text(encoding="utf-8")
    code = page.split("## A strategy")[1].split("```python\n")[1].split("```")[0]
    names = {**vars(contract), "verify": verify, "commit": commit, "option": option, "dataclass": dataclass}
    exec(code, names)  # noqa: S102  it is our own page
    return names["Repeat"]  # type: ignore[no-any-return]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of strategies with the one line more that the page shows."""
    longer = {**STRATEGIES, "repeat": documented()}
    for module in (strategies, generation_options, strategy_choice, request):
        monkeypatch.setattr(module, "STRATEGIES", longer)


@pytest.mark.usefixtures("table")
def test_documented_strategy_runs_as_printed(tiny_decoder: Path) -> None:
    @click.command()
    def command(**options: object) -> None: ...

    for each in generation_options.strategy_options():
        command = each(command)
    parameter = next(each for each in command.params if each.name == "times")
    assert parameter.type is click.INT
    assert parameter.help == "repeat: draft tokens at a time.  [default: 2]"  # type: ignore[attr-defined]
    found = []
    for options in ({"strategy": "greedy"}, {"strategy": "repeat"}, {"strategy": "repeat", "times": 5}):
        with TextGenerator(tiny_decoder, **options, max_new_tokens=30, ignore_eos=True) as opened:  # type: ignore[arg-type]
            found.append(opened.write("a").whole())
    assert found[0].tokens == found[1].tokens == found[2].tokens
    assert found[1].accepted + found[1].rolled_back > 0 and found[2].calls.large <= found[1].calls.large <= 30


@pytest.mark.usefixtures("table")
def test_foreign_option_error_lists_the_strategys_options(tiny_decoder: Path) -> None:
    with pytest.raises(UsageError, match=r"strategy 'repeat' takes no --window\. Its options: --times\."):
        TextGenerator(tiny_decoder, strategy="repeat", window=3)


def test_shell_completion_offers_every_strategy() -> None:
    context = click.Context(cli)
    command = cli.get_command(context, "generate")
    assert command is not None
    strategy = next(each for each in command.params if each.name == "strategy")
    assert [each.value for each in strategy.shell_complete(context, "sp")] == ["speculative"]
    assert [each.value for each in strategy.shell_complete(context, "")] == [*STRATEGIES]


def test_draft_option_error_lists_strategies_with_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Needy(NGram):
        needs_draft = True

    monkeypatch.setattr(strategy_choice, "STRATEGIES", {**STRATEGIES, "needy": Needy})
    assert strategy_choice.with_draft() == ["bild", "speculative", "auto", "needy"]
    with pytest.raises(UsageError, match=r"takes no --draft.*choose --strategy bild, speculative, auto or needy"):
        strategy_choice.method_of("greedy", {}, "--draft")


def test_tune_decoding_has_bild_options() -> None:
    helps = {each.name: str(getattr(each, "help", None)).lower() for each in tune_decoding_command.params}
    for each in options_of(BigLittleDecoder):
        assert each.meaning in helps[each.name]


@pytest.mark.parametrize("strategy", dict.fromkeys(STRATEGIES.values()))
def test_every_option_is_a_number_with_help(strategy: type[Strategy]) -> None:
    for each in options_of(strategy):
        assert each.kind in (int, float) and each.meaning
        assert each.default is None or isinstance(each.default, each.kind)


def test_options_with_one_name_have_one_type() -> None:
    """The command line has one option for all of them."""
    for options in options_by_name(STRATEGIES).values():
        assert len({each.kind for each in options.values()}) == 1


def test_field_without_help_is_detected() -> None:
    @dataclass(frozen=True)
    class Silent(NGram):
        width: int = 3

    with pytest.raises(AssertionError, match="Silent: declare width with `option`"):
        list(options_of(Silent))
