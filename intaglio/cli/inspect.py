"""`intaglio inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from intaglio.cli.output import json_option, print_json, print_table, size

if TYPE_CHECKING:
    from intaglio.bundle import TensorSpec

EPILOG = """\b
Examples:
  intaglio inspect minilm
  intaglio inspect minilm --json
"""


@click.command("inspect", epilog=EPILOG)
@click.argument("bundle", type=click.Path(path_type=Path))
@json_option
def inspect_command(bundle: Path, as_json: bool) -> None:
    """Show what BUNDLE holds: operators, parameters, passes, engines, and the hash of every file."""
    from intaglio.inspection import inspect

    found = inspect(bundle)
    if as_json:
        print_json(found)
        return
    rows: list[tuple[object, ...]] = [
        ("source", found.source),
        ("architecture", found.architecture or "made elsewhere"),
        ("task", found.task or "unknown"),
        *_interface("", found.inputs, found.outputs),
        *(_interface("encoder's ", found.encoder.inputs, found.encoder.outputs) if found.encoder else []),
        ("parameters", f"{found.parameters:,}, {found.bits_per_weight:.2f} bits each, everything counted"),
        *(("", f"{dtype}: {size(number)}") for dtype, number in found.parameter_bytes.items()),
        ("files", size(found.bytes)),
    ]
    print_table(str(bundle), ["", ""], rows)
    operators = [
        (name, number, ", ".join(f"{count} {dtype}" for dtype, count in found.operators_by_dtype[name].items()))
        for name, number in found.operators.items()
    ]
    print_table("Operators", ["type", "nodes", "by dtype"], operators)
    passes = [
        (record.name, ", ".join(f"{number} {kind}" for kind, number in record.counts.items()) or "nothing")
        for record in found.passes
    ]
    if passes:
        print_table("Passes applied", ["pass", "rewritten"], passes)
    engines = [
        (engine.path, engine.target, engine.gpu or "cpu", engine.sm or "", engine.library, size(engine.bytes))
        for engine in found.engines
    ]
    if engines:
        print_table("Engines", ["file", "target", "device", "SM", "library", "size"], engines)
    files = [(name, size(record.bytes), record.sha256) for name, record in found.files.items()]
    print_table("Files", ["file", "size", "SHA-256"], files)


def _interface(whose: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[tuple[str, str]]:
    return [
        (f"{whose}{kind}", f"{spec.name}  {spec.dtype} [{', '.join(map(str, spec.shape))}]")
        for kind, specs in (("input", inputs), ("output", outputs))
        for spec in specs
    ]
