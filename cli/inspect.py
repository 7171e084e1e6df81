"""`intaglio inspect`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from intaglio.cli.options.choices import BUNDLE
from intaglio.cli.printing.engines import print_engines
from intaglio.cli.printing.results import counted, json_option, number_of, print_json, print_table, say, size
from intaglio.cli.running.command import verb

if TYPE_CHECKING:
    from intaglio.bundle.bundle import TensorSpec

EPILOG = """\b
Examples:
  intaglio inspect minilm
  intaglio inspect minilm --hashes
  intaglio inspect minilm --json
"""


HASH = 12  # digits shown of a hash


@verb("inspect", epilog=EPILOG)
@click.argument("bundle", type=BUNDLE)
@click.option("--hashes", is_flag=True, help="Show the full SHA-256 of each file.")
@json_option
def inspect_command(bundle: Path, hashes: bool, as_json: bool) -> None:
    """Show the contents of BUNDLE: operators, parameters, passes, engines, and the hash of every file."""
    from intaglio.bundle.bundle import MODEL
    from intaglio.bundle.inspection import inspect

    found = inspect(bundle)
    if as_json:
        print_json(found)
        return
    rows: list[tuple[object, ...]] = [
        ("source", found.source),
        ("architecture", found.architecture or "unknown (graph from another tool)"),
        ("task", found.task or "unknown"),
        *_interface("", found.inputs, found.outputs),
        *(_interface("encoder's ", found.encoder.inputs, found.encoder.outputs) if found.encoder else []),
        *(_interface("text's ", found.text.inputs, found.text.outputs) if found.text else []),
        *(_interface("image encoder's ", images.inputs, images.outputs) if (images := found.image_encoder) else []),
        ("parameters", f"{found.parameters:,}, {found.bits_per_weight:.2f} bits per parameter, overhead included"),
        *(("", f"{dtype}: {size(number)}") for dtype, number in found.parameter_bytes.items()),
    ]
    print_table(str(bundle), ["", ""], rows)
    operators = [(name, number, _dtypes(found.operators_by_dtype[name])) for name, number in found.operators.items()]
    print_table("Operators", ["type", "nodes", "dtype"], operators)
    passes = [
        (record.name if record.graph == MODEL else f"{record.name} ({record.graph})", counted(record.counts))
        for record in found.passes
    ]
    if passes:
        print_table("Passes applied", ["pass", "rewritten"], passes)
    if found.engines:
        print_engines(found.engines)
    files = [
        (name, size(record.bytes), record.sha256 if hashes else f"{record.sha256[:HASH]}…")
        for name, record in found.files.items()
    ]
    print_table("Files", ["file", "size", "SHA-256"], files)
    say(f"{bundle}: {number_of(len(files), 'files')}, {size(found.bytes)}")


def _dtypes(counts: dict[str, int]) -> str:
    """The output dtype of all nodes of an operator, or the number of nodes by dtype."""
    return next(iter(counts)) if len(counts) == 1 else counted(counts)


def _interface(whose: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[tuple[str, str]]:
    return [
        (f"{whose}{kind}", _described(alike))
        for kind, specs in (("input", inputs), ("output", outputs))
        for alike in _runs(specs)
    ]


def _runs(specs: Sequence[TensorSpec]) -> Iterator[list[TensorSpec]]:
    """Group consecutive tensors that differ only in the number in their name, such as those of a cache."""
    for numbered, group in groupby(specs, lambda spec: spec.name[-1:].isdecimal() and (spec.dtype, spec.shape)):
        alike = list(group)
        yield from [alike] if numbered else ([spec] for spec in alike)


def _described(specs: list[TensorSpec]) -> str:
    from intaglio.cli.printing.printable import TIED

    first, last = specs[0], specs[-1]
    name = first.name if len(specs) == 1 else f"{first.name} … {last.name} ({len(specs)})"
    return f"{name}  {first.dtype}{TIED}[{f',{TIED}'.join(map(str, first.shape))}]"
