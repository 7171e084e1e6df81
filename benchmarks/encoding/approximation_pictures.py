"""The curves of the integer functions and their errors, as pictures for docs/integer-only.md."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.encoding import approximations as functions
from benchmarks.encoding.approximations import INPUT_SCALE, INPUTS, Floats, Integers
from benchmarks.encoding.operator_runs import Run
from intaglio.display.charts import ChartAxis, Line, Panel, chart, ticks

POINTS = 241  # of a smooth curve
LENGTHS = sorted({*range(1, 300), *(round(2 ** (power / 16)) for power in range(193))})


def draw(folder: Path, run: Run) -> None:
    """Write gelu.svg, exp.svg and mass.svg into `folder`; `run` computes the operators."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"gelu": gelu_picture(), "exp": exp_picture(), "mass": mass_picture(run)}.items():
        (folder / f"{name}.svg").write_text(text, encoding="utf-8")


def gelu_picture() -> str:
    """GELU, i-GELU and h-GELU, and the errors of the approximations."""
    inputs = np.linspace(INPUTS[0], INPUTS[-1], POINTS).astype(np.int64)
    x = inputs * INPUT_SCALE
    exact = functions.gelu(x)
    ours = Line("i-GELU, 16-bit integers", "ours", x, functions.i_gelu(inputs))
    hard = Line("h-GELU", "peer", x, functions.h_gelu(x))
    sigmoid = Line("x·σ(1.702x)", "other", x, functions.sigmoid_gelu(x))
    axis = ChartAxis("x", ticks(range(-4, 5)))
    errors = [replace(line, y=line.y - exact) for line in (hard, sigmoid, ours)]
    return chart(
        "GELU and its approximations over −4 to 4, and their errors",
        [
            Panel(
                "The functions",
                axis,
                ChartAxis("output", {-0.5: "−0.5", **ticks(range(5))}),
                [Line("GELU", "exact", x, exact), hard, ours],
                220,
            ),
            Panel(
                "Error against GELU",
                axis,
                ChartAxis("error of the output", ticks([-0.08, -0.04, 0, 0.04, 0.08], 2)),
                errors,
                220,
                {0.0043: "bound of i-GELU, ±0.0043", -0.0043: ""},
            ),
        ],
    )


def exp_picture() -> str:
    """exp and i-exp below the maximum, and the error of i-exp."""
    distances = (65535 * np.linspace(0, 1, 2 * POINTS) ** 2).astype(np.int64)  # closer where there is more to see
    x = -distances * INPUT_SCALE
    exact = np.exp(x)
    ours, real = functions.i_exp(distances), functions.real_i_exp(x)
    axis = ChartAxis("x, distance from the row's maximum", ticks(range(-8, 1)))
    return chart(
        "exp and i-exp over −8 to 0, and the error of i-exp",
        [
            Panel(
                "The functions",
                axis,
                ChartAxis("output", ticks([0, 0.25, 0.5, 0.75, 1], 2)),
                [Line("exp", "exact", x, exact), Line("i-exp, 15-bit integers", "ours", x, ours)],
                180,
            ),
            Panel(
                "Error against exp",
                axis,
                ChartAxis("error of the output", ticks([-0.003, -0.002, -0.001, 0, 0.001, 0.002, 0.003], 3)),
                [
                    Line("its polynomial in real numbers", "peer", x, real - exact),
                    Line("i-exp, 15-bit integers", "ours", x, ours - exact),
                ],
                220,
                {0.0022: "bound of i-exp, ±0.0022", -0.0022: ""},
            ),
        ],
    )


def mass_picture(run: Run) -> str:
    """The sum of the weights of a row, by its length."""
    random = functions.rows(max(LENGTHS))["random, σ = 1"]
    return chart(
        "Sum of the softmax weights of a row by its length, 8-bit softmax against IntAttention",
        [
            mass_panel("All entries equal", [np.zeros(length, np.int64) for length in LENGTHS], run),
            mass_panel("Random entries, normal with σ = 1", [random[:length] for length in LENGTHS], run),
        ],
    )


def mass_panel(title: str, rows: list[Integers], run: Run) -> Panel:
    """One kind of row, of all lengths."""
    lengths: Floats = np.array(LENGTHS, np.float64)
    softmax = [float(functions.softmax_weights(run, row[None]).sum()) for row in rows]
    attention = [float(functions.attention_mass(run, row[None])[0]) for row in rows]
    return Panel(
        title,
        ChartAxis("entries of the row", {2.0**power: str(2**power) for power in range(0, 13, 2)}, logarithmic=True),
        ChartAxis("sum of the weights", ticks([0, 0.5, 1, 1.5, 2], 1)),
        [
            Line("softmax to 8 bits (IntSoftmax at 1/127)", "peer", lengths, np.array(softmax)),
            Line("IntAttention", "ours", lengths, np.array(attention)),
        ],
        180,
    )
