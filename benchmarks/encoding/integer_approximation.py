"""How accurate are the integer functions, compared with their alternatives?

    python -m benchmarks.encoding.integer_approximation [--json] [--pictures docs/pictures]

i-GELU and i-exp over all 16-bit inputs, attention over rows of 1 to 4096, the integer square root, LayerNorm over
ordinary and extreme rows. Whole operators run by their NumPy reference, and by ONNX Runtime where the compiled library
exists. Exit code 1 if a bound is missed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
import msgspec
import numpy as np

from benchmarks.encoding import approximations as functions
from benchmarks.encoding.approximations import GELU_SCALE, INPUT_SCALE, INPUTS, Floats
from benchmarks.encoding.operator_runs import Array, Run, runs
from intaglio.plugins import integer_math, ort

GELU_BOUNDS = {"largest |error|": 0.0043, "root mean square": 0.0024}
EXP_BOUND = 0.0022
MASS_BOUND = 0.01
MISPLACED_BOUND = 4096 * 2.0**-16 + 2 * EXP_BOUND  # half a unit of Q15 for every entry, and what i-exp is off by
STEP_BOUND = 0.1  # of LayerNorm's 16-bit result, in steps of its 8-bit one

LENGTHS = sorted({*range(1, 65), *range(250, 260), *(round(2 ** (power / 8)) for power in range(97))})
CHANNELS = 384


class Figure(msgspec.Struct):
    """A measurement: the value by each runner, its bound, and the values of its peers."""

    name: str
    measured: dict[str, float]
    bound: float
    peers: dict[str, float] = {}

    @property
    def met(self) -> bool:
        """Whether everyone stays within the bound."""
        return all(value <= self.bound for value in self.measured.values())


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
@click.option("--pictures", type=click.Path(path_type=Path), help="Draw the curves as SVG files in this folder.")
def command(as_json: bool, pictures: Path | None) -> None:
    """Measure, print and draw."""
    runners = runs()
    figures = [
        *gelu_figures(runners),
        *exp_figures(),
        *mass_figures(runners),
        square_root_figure(),
        *layer_norm_figures(runners),
    ]
    if as_json:
        report = {"kernels": ort.instruction_set(), "figures": [{**as_dict(each), "met": each.met} for each in figures]}
        click.echo(msgspec.json.encode(report).decode())
    else:
        show(figures, list(runners))
    if pictures is not None:
        from benchmarks.encoding.approximation_pictures import draw

        draw(pictures, runners["NumPy"])
    sys.exit(0 if all(each.met for each in figures) else 1)


def gelu_figures(runners: Mapping[str, Run]) -> Iterator[Figure]:
    """i-GELU in 16 bits over [-4, 4], and the operator down to 8 bits."""
    x = INPUTS * INPUT_SCALE
    exact = functions.gelu(x)
    peers = {
        "I-BERT's parabola": functions.square_gelu(x),
        "h-GELU": functions.h_gelu(x),
        "x·σ(1.702x)": functions.sigmoid_gelu(x),
    }
    measures: dict[str, Callable[[Floats], float]] = {"largest |error|": largest, "root mean square": root_mean_square}
    for measure, of in measures.items():
        measured = {"NumPy": of(functions.i_gelu(INPUTS) - exact)}
        others = {name: of(values - exact) for name, values in peers.items()}
        yield Figure(f"i-GELU on [−4, 4], {measure}", measured, GELU_BOUNDS[measure], others)
    attributes = {"scale": INPUT_SCALE, "out_scale": GELU_SCALE}
    outputs = {name: run("IntGelu", [INPUTS.astype(np.int32)], attributes)[0] for name, run in runners.items()}
    yield Figure(
        f"IntGelu to 8 bits, in steps of {GELU_SCALE:.4f}",
        {name: largest(y * GELU_SCALE - exact) / GELU_SCALE for name, y in outputs.items()},
        GELU_BOUNDS["largest |error|"] / GELU_SCALE + 0.5,
        {"exact GELU": largest(np.rint(exact / GELU_SCALE) * GELU_SCALE - exact) / GELU_SCALE},
    )


def exp_figures() -> Iterator[Figure]:
    """i-exp of 16-bit inputs from -8 to 0, and of inputs at any scale."""
    distances = np.arange(65536)
    exact = np.exp(-distances * INPUT_SCALE)
    real = largest(functions.real_i_exp(-distances * INPUT_SCALE) - exact)
    measured = {"NumPy": largest(functions.i_exp(distances) - exact)}
    yield Figure("i-exp on [−8, 0], largest |error|", measured, EXP_BOUND, {"the same in real numbers": real})
    worst = 0.0
    for scale in (float(np.float32(2.0**power)) for power in np.linspace(-27, 10, 200)):
        distances = np.unique(np.linspace(0, min(12 / scale + 1, 2**32 - 1), 2000).astype(np.int64))
        worst = max(worst, largest(functions.i_exp(distances, scale) - np.exp(-distances * scale)))
    yield Figure("i-exp at 200 scales, 2⁻²⁷ to 2¹⁰", {"NumPy": worst}, EXP_BOUND)


def mass_figures(runners: Mapping[str, Run]) -> Iterator[Figure]:
    """The sum of attention weights, and the fraction that is misplaced."""
    lost = dict.fromkeys(runners, 0.0)
    lost_by_softmax = misplaced = misplaced_by_softmax = 0.0
    for length in LENGTHS:
        scores = np.stack(list(functions.rows(length).values()))
        exact = functions.softmax(scores)
        for name, run in runners.items():
            lost[name] = max(lost[name], largest(functions.attention_mass(run, scores) - 1))
        eight_bits = functions.softmax_weights(runners["NumPy"], scores)
        lost_by_softmax = max(lost_by_softmax, largest(eight_bits.sum(axis=-1) - 1))
        misplaced = max(misplaced, distance(functions.attention_weights(scores), exact))
        misplaced_by_softmax = max(misplaced_by_softmax, distance(eight_bits, exact))
    edge_row = functions.edge_row(4096)[None]
    edge = distance(functions.attention_weights(edge_row), functions.softmax(edge_row))
    edge_by_softmax = distance(functions.softmax_weights(runners["NumPy"], edge_row), functions.softmax(edge_row))
    rows = "rows of 1 to 4096"
    yield Figure(f"attention, {rows}: |mass − 1|", lost, MASS_BOUND, {"8-bit softmax": lost_by_softmax})
    peers = {"8-bit softmax": misplaced_by_softmax}
    yield Figure(f"attention, {rows}: misplaced", {"NumPy": misplaced}, MISPLACED_BOUND, peers)
    peers = {"8-bit softmax": edge_by_softmax}
    yield Figure("attention, worst row of 4096: misplaced", {"NumPy": edge}, MISPLACED_BOUND, peers)


def square_root_figure() -> Figure:
    """Wrong roots among all n next to a square, and 50,000 others."""
    squares = np.arange(1, 65536, dtype=np.int64) ** 2
    random = np.random.default_rng(0).integers(0, 2**32, 50_000)
    numbers = np.concatenate([squares - 1, squares, squares + 1, random, [2**32 - 1]])
    ours = sum(integer_math.integer_sqrt(n) != math.isqrt(n) for n in numbers.tolist())
    exact = np.array([math.isqrt(n) for n in numbers.tolist()])
    float32 = np.sqrt(numbers.astype(np.float32)).astype(np.int64)
    name = f"integer square root: wrong of {len(numbers)}"
    return Figure(name, {"NumPy": ours}, 0, {"float32": int(np.count_nonzero(float32 != exact))})


def layer_norm_figures(runners: Mapping[str, Run]) -> Iterator[Figure]:
    """The 16-bit result against floating point, and whether a constant row returns the bias."""
    random = np.random.default_rng(0)
    weight = random.integers(2**13, 2**14, CHANNELS).astype(np.int32)
    bias = random.integers(-(2**15), 2**15, CHANNELS).astype(np.int32)
    for kind, x in layer_norm_rows(random).items():
        yield layer_norm_figure(runners, kind, x, weight, bias)
    values = np.array([0, 1, -1, 12345, 2**31 - 1, -(2**31)], np.int32)
    constant = np.broadcast_to(values[:, None], (len(values), CHANNELS)).copy()
    attributes = {"scale": 1e-3, "weight_scale": 2.0**-14, "bias_scale": 2.0**-14, "out_scale": 2.0**-6}
    wrong = {}
    for name, run in runners.items():
        wide = run("IntLayerNorm", [constant, weight, bias], attributes)[1]  # at out_scale / 256 = bias_scale
        wrong[name] = float(np.count_nonzero(wide != bias))
    published = functions.whole_number_layer_norm(constant, weight * 2.0**-14, bias * 2.0**-14)
    peers = {"whole numbers": float(np.count_nonzero(~np.isfinite(published)))}
    yield Figure(f"LayerNorm, constant: not the bias, of {constant.size}", wrong, 0, peers)


def layer_norm_rows(random: np.random.Generator) -> dict[str, Array]:
    """Rows int32 [64, CHANNELS] by the name of the special case."""
    shape = (64, CHANNELS)
    ordinary = random.normal(0, 2000, shape)
    outliers = ordinary.copy()
    outliers[:, random.integers(0, CHANNELS, 3)] *= 30
    tiny = random.integers(0, 2, shape) + random.integers(-5, 5, (64, 1))
    huge = random.integers(-(2**31), 2**31, shape)
    kinds = {"ordinary": ordinary, "outliers": outliers, "tiny, 0 or 1": tiny, "huge, all of int32": huge}
    return {kind: np.rint(x).astype(np.int32) for kind, x in kinds.items()}


def layer_norm_figure(runners: Mapping[str, Run], kind: str, x: Array, weight: Array, bias: Array) -> Figure:
    """The error of the 16-bit result, in 8-bit steps that just cover the largest value."""
    real = (x, weight * 2.0**-14, bias * 2.0**-16)
    exact = functions.layer_norm(*real)
    step = float(np.float32(largest(exact) / 127))
    attributes = {"scale": 1e-3, "weight_scale": 2.0**-14, "bias_scale": 2.0**-16, "out_scale": step}
    measured = {
        name: largest(run("IntLayerNorm", [x, weight, bias], attributes)[1] * step / 256 - exact) / step
        for name, run in runners.items()
    }
    peers = {"whole numbers": largest(functions.whole_number_layer_norm(*real) - exact) / step}
    return Figure(f"LayerNorm, {kind}: steps off", measured, STEP_BOUND, peers)


def largest(error: Floats) -> float:
    """The largest magnitude."""
    return float(np.abs(error).max())


def root_mean_square(error: Floats) -> float:
    """The square root of the mean square."""
    return math.sqrt(float((error**2).mean()))


def distance(weights: Floats, exact: Floats) -> float:
    """Half of the sum of all differences (the misplaced weight), of the worst row."""
    return float(np.abs(weights - exact).sum(axis=-1).max() / 2)


def as_dict(figure: Figure) -> dict[str, object]:
    """The fields; an infinite peer value becomes null, as JSON has no infinity."""
    peers = {name: value if math.isfinite(value) else None for name, value in figure.peers.items()}
    return {"name": figure.name, "measured": figure.measured, "bound": figure.bound, "peers": peers}


def show(figures: list[Figure], runners: list[str]) -> None:
    """Print a line per measurement."""
    print(f"{'':46}" + "".join(f"{name:>14}" for name in runners) + f"{'at most':>12}  met  peers")
    for each in figures:
        columns = "".join(f"{number(each.measured[name]) if name in each.measured else '':>14}" for name in runners)
        peers = ", ".join(f"{name} {number(value)}" for name, value in each.peers.items())
        print(f"{each.name:46}{columns}{number(each.bound):>12}  {'yes' if each.met else 'NO ':3}  {peers}")
    print(f"\nkernels of the library: {ort.instruction_set() or 'none, it is not compiled'}")


def number(value: float) -> str:
    """Counts unchanged, other numbers with three digits."""
    if math.isinf(value):
        return "∞"
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


if __name__ == "__main__":
    command(prog_name="python -m benchmarks.encoding.integer_approximation")
