"""The quality loss of the weight passes: perplexity on held-out text, and average bits, of the trained large model.

    python -m benchmarks.weights.weight_quality [--model FOLDER] [--text FILE] [--calibration FILE] [--json]

All linear layers are compressed by each method, from the same float32 bundle and the same calibration text; norms,
embeddings and the tied head stay. `bits` are bits per weight of the compressed layers, with everything that is stored
for them: indices, tables, scales, zero points, sparse values with their places.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import msgspec

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.display.progress import step
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.plugins import DOMAIN
from intaglio.training.gradients.sensitivity import sensitivity
from intaglio.validation.scores.perplexity import perplexity

MODELS = Path(__file__).parents[2] / "examples" / "language_models"

# Name -> the recipe's one pass with its options.
METHODS: dict[str, str] = {
    "lut-sparse, 4 bits": "lut_sparse: {bits: 4}",
    "lut, 4 bits": "lut: {bits: 4}",
    "gptq, 4 bits, groups of 128": "gptq: {bits: 4}",
    "awq, 4 bits, groups of 128": "awq: {bits: 4}",
    "rtn, 4 bits, groups of 128": "rtn: {bits: 4}",
    "lut-sparse, 3 bits": "lut_sparse: {bits: 3}",
    "lut, 3 bits": "lut: {bits: 3}",
    "gptq, 3 bits, groups of 128": "gptq: {bits: 3}",
    "gptq, 3 bits, groups of 64": "gptq: {bits: 3, group_size: 64}",
    "awq, 3 bits, groups of 128": "awq: {bits: 3}",
    "rtn, 3 bits, groups of 128": "rtn: {bits: 3}",
    "lut-sparse, 2 bits": "lut_sparse: {bits: 2}",
    "lut, 2 bits": "lut: {bits: 2}",
    "int8-absmax, a scale per row": "int8_absmax",
    "int8-zeropoint, a scale per row": "int8_zeropoint",
}
TAKES_CALIBRATION = ("gptq", "awq", "lut")
TAKES_SENSITIVITY = ("lut",)


class Row(msgspec.Struct):
    """The results of one method; the divergence is KL(float ‖ compressed) in nats a token."""

    method: str
    bits: float
    perplexity: float
    ratio: float
    kl_divergence: float


def layer_bits(bundle: Bundle) -> float:
    """Average bits of the weights that our operators multiply by."""
    model = load(bundle.model_path)
    stored = weights = 0
    for node in model.graph:
        if node.domain != DOMAIN:
            continue
        constants = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
        stored += sum(8 * tensor.nbytes for tensor in constants)
        weights += constants[0].shape[0] * node.attributes["K"].as_int()
    return stored / weights


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--model", default=MODELS / "large", type=click.Path(path_type=Path), help="The checkpoint.")
@click.option("--text", default=MODELS / "held_out.txt", type=click.Path(path_type=Path), help="Scored; UTF-8.")
@click.option("--calibration", default=MODELS / "calibration.txt", type=click.Path(path_type=Path), help="UTF-8.")
@click.option("--only", default="", help="Methods whose name begins so.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(model: Path, text: Path, calibration: Path, only: str, as_json: bool) -> None:
    """Measure and print."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        export(model, folder / "float", check=False)
        original = Bundle.open(folder / "float")
        base = perplexity(original, text)
        if not as_json:
            print(f"{model.name}: perplexity {base.perplexity:.3f} in float32 over {base.tokens} tokens\n")
            print(f"{'':34}{'bits':>6}{'perplexity':>12}{'÷ float':>9}{'KL':>9}")
        sensitivity(folder / "float", folder / "sensitivities", calibration)
        for number, (name, entry) in enumerate(METHODS.items()):
            if not name.startswith(only):
                continue
            recipe = folder / f"{number}.yaml"
            recipe.write_text(f"passes: [{{{entry}}}]" if ":" in entry else f"passes: [{entry}]", encoding="utf-8")
            with step(name):
                compress(
                    folder / "float",
                    folder / str(number),
                    recipe,
                    calibration=calibration if entry.startswith(TAKES_CALIBRATION) else None,
                    sensitivity=folder / "sensitivities" if entry.startswith(TAKES_SENSITIVITY) else None,
                )
            made = Bundle.open(folder / str(number))
            found = perplexity(made, text, original)
            assert found.kl_divergence is not None
            ratio = found.perplexity / base.perplexity
            rows.append(Row(name, layer_bits(made), found.perplexity, ratio, found.kl_divergence))
            if not as_json:
                row = rows[-1]
                print(f"{name:34}{row.bits:6.2f}{row.perplexity:12.3f}{ratio:9.4f}{row.kl_divergence:9.4f}", flush=True)
    if as_json:
        click.echo(msgspec.json.encode({"perplexity": base.perplexity, "rows": rows}).decode())


if __name__ == "__main__":
    main()
