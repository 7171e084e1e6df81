"""The options of all commands that run a model: the runtime and its threads."""

from __future__ import annotations

import click

from intaglio.bundle.plan_record import CACHE_BITS
from intaglio.cli.options.choices import TARGET, OneOf
from intaglio.cli.running.command import Decorator, group
from intaglio.processes.threads import MAX_THREADS
from intaglio.targets import DEFAULT, summary

RUNTIME = "Runtime"


def target_option(what: str = "Runtime", kind: OneOf = TARGET, also: str = "") -> Decorator:
    """`--target`; `what`: which runtime of the command, `also`: values besides the targets."""
    option = click.option("--target", type=kind, default=DEFAULT, help=f"{what}: {summary()}{also}.")
    return group(RUNTIME, option)


def threads_option(what: str = "CPU threads") -> Decorator:
    """`--threads`; `what`: whose threads."""
    meaning = f"{what}, for ort-cpu.  [default: all]"
    return group(RUNTIME, click.option("--threads", type=click.IntRange(1, MAX_THREADS), help=meaning))


def cache_bits_option() -> Decorator:
    """`--cache-bits`, of all commands that generate."""
    return group(
        RUNTIME,
        cache_bits("Bits of cached keys and values, for ONNX Runtime, or as an engine was built; with 4, keys keep 8."),
    )


def cache_bits(what: str) -> Decorator:
    """`--cache-bits`, with its help."""
    return click.option(
        "--cache-bits",
        type=OneOf([*map(str, CACHE_BITS)]),
        callback=lambda _context, _parameter, value: value and int(value),
        help=f"{what}  [default: as the model has them]",
    )
