"""Do all exact strategies produce the large model's text, and do sampled texts follow its distribution?

    python -m benchmarks.decoding.exactness [--models FOLDER] [--drafts FOLDER ...] [--prompts N] [--json]

Greedy: `--prompts` places of the held-out text, 64 tokens each, for float32 weights and for 4 bits; a text is equal if
all its tokens are. Where one differs, its gap is the difference of the two largest logits at the first token that does,
in the plain model's own pass: passes over several tokens round differently from passes over one, and a gap within that
rounding can go either way. Sampled: Pearson's chi-squared test of three sampled tokens against the exact
distribution, which has 27 outcomes; `p` is the probability that a sample of the right distribution is as far from it.

Without --drafts, a model's own drafts come from untrained projections, which repeat a token's state:
whether a text is exact does not depend on how good they are. With it, checkpoints that `intaglio train` wrote.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import step, track
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.networks.drafts import HIDDEN_TRANSFER, MATRICES, MEDUSA, RECORD, Drafts, default_layers, matrix_path
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.sampling.sampler import Sampling, distribution
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.text.tokenizer import read_backend

MODELS = Path(__file__).parents[2] / "examples" / "language_models"
TOKENS = 64
CHARACTERS = 200  # of a prompt
AHEAD = 3  # tokens drafted by untrained drafts
SAMPLED = 3  # tokens per sampled text
SAMPLING: dict[str, Any] = {"temperature": 1.5, "top_k": 3}

# Name -> the options of `generate`, and the bundle it runs.
GREEDY: dict[str, tuple[dict[str, Any], str]] = {
    "speculative": ({"strategy": "speculative"}, "plain"),
    "speculative, windows of 4": ({"strategy": "speculative", "window": 4}, "plain"),
    "ngram": ({"strategy": "ngram"}, "plain"),
    "bild, rollback 0": ({"strategy": "bild", "rollback": 0.0}, "plain"),
    "bild, rollback 0, fallback 0": ({"strategy": "bild", "rollback": 0.0, "fallback": 0.0}, "plain"),
    "hidden-transfer": ({"strategy": HIDDEN_TRANSFER}, HIDDEN_TRANSFER),
    "medusa": ({"strategy": MEDUSA}, MEDUSA),
}
DRAFTED_BY_A_MODEL = ("speculative", "bild")


class Row(msgspec.Struct):
    """Greedy texts of one strategy."""

    strategy: str
    weights: str
    texts: int
    equal: int
    gaps: list[float]  # of the texts that differ
    tokens_a_pass: float  # of the large model
    kept: float  # fraction of the drafted tokens


class Sampled(msgspec.Struct):
    """Sampled texts of one strategy."""

    strategy: str
    texts: int
    chi_squared: float
    freedom: int
    p: float


class Exactness(msgspec.Struct):
    """All results."""

    greedy: list[Row]
    sampled: list[Sampled]


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--models", default=MODELS, type=click.Path(path_type=Path), help="Has small/, large/, held_out.txt.")
@click.option("--drafts", multiple=True, type=click.Path(path_type=Path), help="large/ with trained drafts.")
@click.option("--prompts", default=200, show_default=True, help="Texts of each strategy.")
@click.option("--samples", default=4000, show_default=True, help="Sampled texts of each strategy.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(models: Path, drafts: tuple[Path, ...], prompts: int, samples: int, as_json: bool) -> None:
    """Write, compare, print."""
    held_out = (models / "held_out.txt").read_text(encoding="utf-8")
    starts = np.linspace(0, len(held_out) - CHARACTERS, prompts).astype(int)
    texts = [held_out[start : start + CHARACTERS] for start in starts]
    with tempfile.TemporaryDirectory() as folder:
        bundles = prepare(models, drafts, Path(folder))
        small = bundles.pop("small")["float32"]
        greedy = [row for weights in ("float32", "4 bits") for row in compare(bundles, small, weights, texts)]
        sampled = sample(bundles, small, texts[0], samples)
    result = Exactness(greedy, sampled)
    click.echo(msgspec.json.encode(result).decode() if as_json else table(result))


def prepare(models: Path, drafts: Sequence[Path], folder: Path) -> dict[str, dict[str, Path]]:
    """Bundles by kind of draft and by weights: "small", "plain", and the large model with each kind of drafts."""
    checkpoints = {"small": models / "small", "plain": models / "large"}
    for path in drafts:
        checkpoints[msgspec.json.decode((path / RECORD).read_bytes(), type=Drafts).kind] = path
    for kind in {HIDDEN_TRANSFER, MEDUSA} - set(checkpoints):
        checkpoints[kind] = untrained(models / "large", folder / f"{kind} checkpoint", kind)
    bundles: dict[str, dict[str, Path]] = {}
    for name, checkpoint in track(checkpoints.items(), "exporting", len(checkpoints)):
        bundle, four = folder / name, folder / f"{name} 4 bits"
        export(str(checkpoint), bundle, check=False)
        bundles[name] = {"float32": bundle}
        if name != "small":
            compress(bundle, four, "rtn")
            bundles[name]["4 bits"] = four
    return bundles


def untrained(large: Path, folder: Path, kind: Any) -> Path:
    """A copy of a checkpoint with drafts that repeat a token's state."""
    from safetensors.numpy import save_file

    shutil.copytree(large, folder)
    config = msgspec.json.decode((folder / "config.json").read_bytes())
    layers = default_layers(AHEAD, config["n_layer"]) if kind == HIDDEN_TRANSFER else ()
    zeros = np.zeros((config["n_embd"], config["n_embd"]), np.float32)
    save_file({f"{matrix_path(ahead)}.weight": zeros for ahead in range(AHEAD)}, folder / MATRICES)
    (folder / RECORD).write_bytes(msgspec.json.encode(Drafts(kind, AHEAD, layers)))
    return folder


def write(bundle: Path, texts: Sequence[str], **options: Any) -> list[Generated]:
    """Every text, one at a time."""
    title = str(options.get("strategy", "greedy"))
    with TextGenerator(bundle, max_new_tokens=TOKENS, **options) as generator:
        return [generator.write(text).whole() for text in track(texts, title, len(texts))]


def compare(bundles: Mapping[str, Mapping[str, Path]], small: Path, weights: str, texts: Sequence[str]) -> list[Row]:
    """Every strategy against the plain model with the same weights."""
    expected = write(bundles["plain"][weights], texts)
    rows = []
    for name, (options, of) in GREEDY.items():
        given = options | ({"draft": small} if options["strategy"] in DRAFTED_BY_A_MODEL else {})
        found = write(bundles[of][weights], texts, **given)
        pairs = list(zip(texts, expected, found, strict=True))
        different = [(text, plain, other) for text, plain, other in pairs if plain.tokens != other.tokens]
        tokens = sum(len(result.tokens) for result in found)
        accepted, rolled_back = (sum(getattr(each, what) for each in found) for what in ("accepted", "rolled_back"))
        rows.append(
            Row(
                strategy=name,
                weights=weights,
                texts=len(texts),
                equal=len(texts) - len(different),
                gaps=[gap(bundles["plain"][weights], *each) for each in different],
                tokens_a_pass=tokens / sum(result.calls.large for result in found),
                kept=accepted / max(accepted + rolled_back, 1),
            )
        )
    return rows


def gap(bundle: Path, text: str, plain: Generated, other: Generated) -> float:
    """The difference of the two largest logits at the first different token, at one token per pass."""
    place = next(place for place, (a, b) in enumerate(zip(plain.tokens, other.tokens, strict=False)) if a != b)
    with DecoderSession.open(bundle) as session:
        logits = session.prefill([read_backend(Bundle.open(bundle)).encode(text).ids])[0]
        for token in plain.tokens[:place]:
            logits = session.step([[token]])[0, 0]
    second, first = np.sort(logits)[-2:]
    return float(first - second)


def sample(bundles: Mapping[str, Mapping[str, Path]], small: Path, prompt: str, samples: int) -> list[Sampled]:
    """Every strategy that keeps the distribution, against the plain model's."""
    plain = bundles["plain"]["float32"]
    exact = outcomes(plain, prompt)
    rows = []
    for name, (options, of) in GREEDY.items():
        if options["strategy"] == "bild":
            continue
        given = options | ({"draft": small} if options["strategy"] in DRAFTED_BY_A_MODEL else {})
        with TextGenerator(
            bundles[of]["float32"], max_new_tokens=SAMPLED, seed=0, ignore_eos=True, **SAMPLING, **given
        ) as generator:
            found = Counter(
                tuple(generator.write(prompt).whole().tokens)
                for _ in track(range(samples), f"sampling, {name}", samples)
            )
        rows.append(chi_squared(name, found, exact, samples))
    return rows


def outcomes(bundle: Path, prompt: str) -> dict[tuple[int, ...], float]:
    """The probability of every possible text of `SAMPLED` tokens."""
    sampling, found = Sampling(**SAMPLING), dict[tuple[int, ...], float]()
    with step("computing the distribution"), DecoderSession.open(bundle) as session:
        ids = read_backend(Bundle.open(bundle)).encode(prompt).ids
        known: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(SAMPLED):
            found = {}
            for written, probability in known.items():
                session.rollback(0)
                each = distribution(session.prefill([[*ids, *written]])[0], sampling)
                found |= {(*written, int(token)): probability * float(each[token]) for token in np.flatnonzero(each)}
            known = found
    return found


def chi_squared(
    name: str, found: Counter[tuple[int, ...]], exact: Mapping[tuple[int, ...], float], size: int
) -> Sampled:
    """Pearson's test; outcomes with an expected count below 8 are merged. p by Wilson and Hilferty (1931)."""
    if unexpected := set(found) - set(exact):
        raise AssertionError(f"{name}: wrote {unexpected}, which the model cannot")
    cells = [(found[each], size * probability) for each, probability in exact.items() if size * probability >= 8]
    rare = [(found[each], size * probability) for each, probability in exact.items() if size * probability < 8]
    if rare:
        cells.append((sum(count for count, _ in rare), sum(expected for _, expected in rare)))
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    freedom = len(cells) - 1
    part = 2 / (9 * freedom)
    normal = ((statistic / freedom) ** (1 / 3) - (1 - part)) / math.sqrt(part)
    return Sampled(name, size, statistic, freedom, math.erfc(normal / math.sqrt(2)) / 2)


def table(result: Exactness) -> str:
    """Print the results as tables."""
    lines = [f"{'greedy':30} {'weights':8} {'equal':>9} {'tokens a pass':>14} {'kept':>6}   gaps where it differs"]
    for row in result.greedy:
        gaps = ", ".join(f"{each:.1e}" for each in row.gaps)
        lines.append(
            f"{row.strategy:30} {row.weights:8} {row.equal:4}/{row.texts:<4} {row.tokens_a_pass:14.2f} {row.kept:6.0%}"
            f"   {gaps}"
        )
    lines += ["", f"{'sampled':30} {'texts':>6} {'chi-squared':>12} {'freedom':>8} {'p':>6}"]
    lines += [
        f"{row.strategy:30} {row.texts:6} {row.chi_squared:12.1f} {row.freedom:8} {row.p:6.3f}"
        for row in result.sampled
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
