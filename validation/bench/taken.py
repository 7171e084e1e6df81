"""The options of `bench` that models without generated texts take."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from intaglio.errors import UsageError

TAKEN = ("target", "threads")


def refuse_text_options(options: Collection[str], prompts: Sequence[str] | None, what: str) -> None:
    """Raise `UsageError` for `options` of generation, and for prompts; `what`: the beginning of the reason."""
    unexpected = [name for name in options if name not in TAKEN]
    if unexpected or prompts is not None:
        name = unexpected[0].replace("_", "-") if unexpected else "data"
        raise UsageError(f"--{name}: {what} takes no prompts. Leave it out.")
