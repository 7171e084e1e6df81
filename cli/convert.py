"""`intaglio convert`."""

from __future__ import annotations

from pathlib import Path

import click

from intaglio.cli.options.choices import PATH
from intaglio.cli.printing.results import force_option, json_option, print_json, say
from intaglio.cli.running.command import verb

EPILOG = """\b
Examples:
  intaglio convert ./bert-with-pytorch_model.bin -o bert
  intaglio convert squeezeformer_ctc_small.nemo -o squeezeformer
  intaglio convert sq-llama-7b-w3-s45.pt --base llama-7b -o squeezed
  intaglio convert site-packages/hama/assets/asr_waveform.hama -o hama
  intaglio export squeezeformer -o squeezeformer-bundle
"""
NAMED = 5  # tensors that are listed


@verb("convert", epilog=EPILOG)
@click.argument("source")
@click.option("-o", "--output", required=True, type=PATH, help="The checkpoint to make.")
@click.option(
    "--base",
    type=PATH,
    help="Of a .pt file of SqueezeLLM: the checkpoint that it was made from, for its configuration, its tokenizer and "
    "what the file lacks.  [default: the folder that it is in]",
)
@force_option
@json_option
def convert_command(source: str, output: Path, base: Path | None, force: bool, as_json: bool) -> None:
    """Convert weights in another format to a checkpoint that `intaglio export` reads.

    SOURCE is a folder or a hub id whose weights are in pytorch_model.bin, a .nemo archive of NVIDIA NeMo
    (Squeezeformer, Conformer or Fast Conformer with a CTC head), the .hama container of the Python package hama 1.7,
    or a .pt file of SqueezeLLM, whose tables and sparse numbers are kept unchanged.
    The checkpoint is a folder with config.json, model.safetensors, and the tokenizer's files or vocabulary.json.
    Pickles are read without running code from them.
    """
    from intaglio.exporters import convert

    result = convert(source, output, force, base)
    if as_json:
        print_json(result)
        return
    if result.left_out:
        more = "…" if result.left_out[NAMED:] else ""
        say(f"skipped, not part of the architecture: {', '.join(result.left_out[:NAMED])}{more}")
    say(
        f"{result.checkpoint}: a {result.architecture} with {result.parameters / 1e6:.1f} million parameters and "
        f"{result.tokens} tokens. Next: intaglio export {result.checkpoint} -o BUNDLE"
    )
