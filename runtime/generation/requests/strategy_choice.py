"""Choose the strategy and the sampling parameters from the user's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from intaglio.errors import UsageError
from intaglio.runtime.sampling.sampler import Sampling
from intaglio.runtime.strategies import STRATEGIES, Strategy
from intaglio.runtime.strategies.options import options_of


def with_draft() -> list[str]:
    """The strategies that take a draft model."""
    return [name for name, kind in STRATEGIES.items() if kind.needs_draft is not False]


def method_of(name: str, options: Mapping[str, object], drafting: str | None) -> Strategy:
    """Build the strategy with the user's options. Raises `UsageError` for options that it does not have.

    `drafting`: the option that chose a draft model, "--draft" or "--early-exit", if any.
    """
    kind = STRATEGIES[name]
    if kind.needs_draft not in (None, drafting is not None):
        needed = "needs a draft model: add --draft BUNDLE or --early-exit"
        *others, last = with_draft()
        others_advice = f"choose --strategy {', '.join(others)} or {last}"
        reason = f"takes no {drafting}. Leave it out, or {others_advice}" if drafting else needed
        raise UsageError(f"strategy {name!r} {reason}.")
    given = {option: value for option, value in options.items() if value is not None}
    known = [option.name for option in options_of(kind)]
    if unknown := [option for option in given if option not in known]:
        taken = ", ".join(f"--{option.replace('_', '-')}" for option in known) or "none"
        raise UsageError(f"strategy {name!r} takes no --{unknown[0].replace('_', '-')}. Its options: {taken}.")
    return kind(**given)


def sampling_of(
    strategy: str | None, default: str, filters: dict[str, float | None], penalties: Mapping[str, float]
) -> tuple[str, Sampling]:
    """Return the strategy's name and the sampling parameters; `default`: the name if no filters are given.

    `penalties` apply to every strategy.
    """
    given = {name: value for name, value in filters.items() if value is not None}
    name = strategy or ("sample" if given and default == "greedy" else default)
    if name not in STRATEGIES:
        raise UsageError(f"strategy {name!r}: expected one of {', '.join(STRATEGIES)}.")
    if name == "greedy" and given:
        options = ", ".join(f"--{option.replace('_', '-')}" for option in given)
        raise UsageError(f"strategy 'greedy' does not sample: leave out {options}, or use --strategy sample.")
    if given or name == "sample":
        given.setdefault("temperature", 1.0)
    return name, Sampling(**given, **penalties)  # type: ignore[arg-type]


def drafting_option(early_exit: bool, draft: object | None, adapter: Sequence[str | Path]) -> str | None:
    """The option that chooses a draft model; None without one. Raises `UsageError` for options that exclude it."""
    for option, given in (("--draft", draft is not None), ("--adapter", bool(adapter))):
        if early_exit and given:
            raise UsageError(f"--early-exit and {option} are both given, expected at most one. Leave one out.")
    return "--early-exit" if early_exit else "--draft" if draft is not None else None
