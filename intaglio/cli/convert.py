"""`intaglio convert`."""

from __future__ import annotations

from pathlib import Path

import click

from intaglio.cli.output import force_option, json_option, print_json, say
from intaglio.cli.verb import verb

EPILOG = """\b
Examples:
  intaglio convert squeezeformer_ctc_small.nemo -o squeezeformer
  intaglio convert site-packages/hama/assets/asr_waveform.hama -o hama
  intaglio export squeezeformer -o squeezeformer-bundle
"""


@verb("convert", epilog=EPILOG)
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The checkpoint to make.")
@force_option
@json_option
def convert_command(source: Path, output: Path, force: bool, as_json: bool) -> None:
    """Convert a speech recogniser of another toolkit to a checkpoint that `intaglio export` reads.

    SOURCE is a .nemo archive of NVIDIA NeMo (Squeezeformer, Conformer or Fast Conformer with a CTC head), or the .hama
    container of the Python package hama 1.7. The checkpoint is a folder with config.json, model.safetensors and
    vocabulary.json. The torch file inside an archive is read without running code from it.
    """
    from intaglio.exporters import convert

    result = convert(source, output, force)
    if as_json:
        print_json(result)
    else:
        say(
            f"{result.checkpoint}: a {result.architecture} with {result.parameters / 1e6:.1f} million parameters and "
            f"{result.tokens} tokens. Next: intaglio export {result.checkpoint} -o BUNDLE"
        )
