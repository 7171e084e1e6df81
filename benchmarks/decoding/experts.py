"""Do resting experts cost anything in a step?

    python -m benchmarks.decoding.experts [--layers 6] [--tokens 48] [--json]

A Mixtral of random weights with 8 experts, of which 2 are active, is exported, and beside it two peers of the same
shapes: the graph in which every expert multiplies every row, and masks choose (what a plain trace of the model gives),
and a LLaMA whose feed-forward layers are as wide as the two active experts, which reads as many bytes in a step as the
active weights are. The bytes that a step reads are the pages of memory that the kernel marks as referenced. All three
write a text of one sequence, in turn, in one process; such a step is limited by the memory's bandwidth. The limits: at
most 1.1 times the bytes of the LLaMA, at least twice the speed of the masked graph.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import msgspec

from benchmarks.shared.random_decoder import parameters, random_decoder
from intaglio.display.progress import step
from intaglio.runtime import TextGenerator
from intaglio.runtime.sessions.decoder import DecoderSession

ROUNDS = 7
SIZES = {
    "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 32_000,
    "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
WIDTH, EXPERTS, ACTIVE = 3584, 8, 2
# Exports Mixtral with every expert computed for every row.
MASKED = """
import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from intaglio.exporters.decoders import experts

def masked(module, hidden_states, top_k_index, top_k_weights):
    tokens, width = hidden_states.shape
    every = torch.arange(module.num_experts)
    numbers = every[:, None].expand(-1, tokens).reshape(-1)
    counts = every * 0 + tokens

    def product(rows, weight):
        return experts.expert_products(rows, numbers, counts, weight, module.is_transposed)

    rows = hidden_states[None].expand(module.num_experts, -1, -1).reshape(-1, width)
    outputs = product(module._apply_gate(product(rows, module.gate_up_proj)), module.down_proj)
    scores = ((top_k_index[..., None] == every) * top_k_weights[..., None]).sum(1)
    return (outputs.reshape(-1, tokens, width) * scores.T[..., None]).sum(0).to(hidden_states.dtype)

ALL_EXPERTS_FUNCTIONS.register(experts.NAME, masked)
from intaglio.cli import main
main()
"""


class Result(msgspec.Struct):
    """Bytes of a step and tokens a second of the graphs, and their ratios."""

    parameters: int
    active: int
    experts: float
    masked: float
    dense: float
    time_of_dense: float
    speed_of_masked: float  # at least 2
    bytes: int  # of a step
    dense_bytes: int
    bytes_of_dense: float  # at most 1.1


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--layers", default=6, show_default=True, help="Layers of the models.")
@click.option("--tokens", default=48, show_default=True, help="Tokens of a text.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(layers: int, tokens: int, as_json: bool) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = {**SIZES, "num_hidden_layers": layers}
        experts = {"num_local_experts": EXPERTS, "num_experts_per_tok": ACTIVE, "intermediate_size": WIDTH}
        random_decoder(folder / "mixtral", "mixtral", **sizes, **experts)
        random_decoder(folder / "llama", "llama", **sizes, intermediate_size=ACTIVE * WIDTH)
        bundles = {name: folder / f"{name}-bundle" for name in ("experts", "masked", "dense")}
        for (name, bundle), source in zip(bundles.items(), ("mixtral", "mixtral", "llama"), strict=True):
            with step(f"exporting {name}"):
                program = ["-c", MASKED] if name == "masked" else ["-m", "intaglio"]
                command = [sys.executable, *program, "export", str(folder / source), "-o", str(bundle)]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with step("writing texts"):
            experts_speed, masked_speed, dense_speed = speeds(list(bundles.values()), tokens)
        read, dense_read = bytes_read(bundles["experts"]), bytes_read(bundles["dense"])
        result = Result(
            parameters(folder / "mixtral"), parameters(folder / "llama"), experts_speed, masked_speed, dense_speed,
            dense_speed / experts_speed, experts_speed / masked_speed, read, dense_read, read / dense_read,
        )  # fmt: skip
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
        return
    click.echo(
        f"{result.parameters / 1e9:.2f} B parameters, {result.active / 1e9:.2f} B of them active; tokens a second:"
    )
    click.echo(f"  experts by row {experts_speed:8.1f}")
    click.echo(f"  LLaMA of the active size {dense_speed:8.1f}: {result.time_of_dense:.2f} x its time")
    click.echo(f"  all experts, masked {masked_speed:8.1f}: {result.speed_of_masked:.2f} x its speed   (at least 2)")
    click.echo(
        f"bytes of a step: {read / 1e6:.1f} MB, {result.bytes_of_dense:.3f} x the LLaMA's {dense_read / 1e6:.1f} MB   "
        "(at most 1.1)"
    )


def speeds(bundles: list[Path], tokens: int) -> list[float]:
    """Tokens a second of each, the median of `ROUNDS` in turn."""
    generators = [TextGenerator(bundle, max_new_tokens=tokens, ignore_eos=True) for bundle in bundles]
    found: list[list[float]] = [[] for _ in bundles]
    for _ in range(ROUNDS):
        for each, generator in zip(found, generators, strict=True):
            (run,) = generator.generate_many(["Once upon a time"])
            each.append(run.result().tokens_per_second)
    for generator in generators:
        generator.close()
    return [statistics.median(each) for each in found]


def bytes_read(bundle: Path) -> int:
    """The bytes of memory that a step of one token reads, by pages, the median of `ROUNDS`; experts differ by token."""
    found = []
    with DecoderSession.open(bundle, batch=1) as session:
        session.append([[5, 6, 7, 8]], [1])
        for token in range(9, 9 + ROUNDS):
            Path("/proc/self/clear_refs").write_text("1")
            session.append([[token]], [1])
            lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
            (line,) = [each for each in lines if each.startswith("Referenced:")]
            found.append(1024 * int(line.split()[1]))
    return int(statistics.median(found))


if __name__ == "__main__":
    main()
