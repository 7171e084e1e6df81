"""A strategy's options are declared by its dataclass alone: the command line and Python take them from there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import click
import pytest

from intaglio.cli import generation_options
from intaglio.errors import UsageError
from intaglio.runtime.generation import generate as verb
from intaglio.runtime.generation import request, strategy_choice
from intaglio.runtime.strategies import STRATEGIES
from intaglio.runtime.strategies.contract import GeneratedSequence, Steps, Strategy, Written
from intaglio.runtime.strategies.options import option, options_by_name, options_of


@dataclass(frozen=True)
class Stutter(Strategy):
    """Every token several times."""

    needs_draft: ClassVar[bool] = False
    repeats: int = option(2, "how often each token is written")

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        while True:
            logits = yield sequence.large.follow(sequence.tokens)
            token = sequence.sampler.choose(logits[-1], sequence.tokens)
            for _ in range(self.repeats):
                yield Written(token, "large")


@pytest.fixture
def stutter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The table with one line more."""
    table = {**STRATEGIES, "stutter": Stutter}
    for module in (generation_options, strategy_choice, request):
        monkeypatch.setattr(module, "STRATEGIES", table)
    yield


@pytest.mark.usefixtures("stutter")
def test_a_new_strategy_is_a_class_and_a_line_of_the_table(tiny_decoder: Path) -> None:
    @click.command()
    def command(**options: object) -> None: ...

    for each in generation_options.strategy_options():
        command = each(command)
    parameter = next(each for each in command.params if each.name == "repeats")
    assert parameter.type is click.INT
    assert parameter.help == "stutter: how often each token is written.  [default: 2]"
    with verb.TextGenerator(tiny_decoder, strategy="stutter", repeats=3, max_new_tokens=12, ignore_eos=True) as opened:
        tokens = opened.write("a").whole().tokens
    assert len(tokens) == 12 and tokens[::3] == tokens[1::3] == tokens[2::3]


@pytest.mark.usefixtures("stutter")
def test_an_option_of_another_strategy_lists_those_that_it_takes(tiny_decoder: Path) -> None:
    with pytest.raises(UsageError, match=r"strategy 'stutter' takes no --window\. Its options: --repeats\."):
        verb.TextGenerator(tiny_decoder, strategy="stutter", window=3)


@pytest.mark.parametrize("strategy", dict.fromkeys(STRATEGIES.values()))
def test_every_option_is_a_number_and_says_what_it_means(strategy: type[Strategy]) -> None:
    for each in options_of(strategy):
        assert each.kind in (int, float) and each.meaning
        assert each.default is None or isinstance(each.default, each.kind)


def test_options_of_one_name_are_of_one_kind() -> None:
    """The command line has one option for all of them."""
    for strategies in options_by_name(STRATEGIES).values():
        assert len({each.kind for each in strategies.values()}) == 1


def test_a_field_without_a_meaning_is_found() -> None:
    @dataclass(frozen=True)
    class Silent(Stutter):
        width: int = 3

    with pytest.raises(AssertionError, match="Silent: declare width with `option`"):
        list(options_of(Silent))
