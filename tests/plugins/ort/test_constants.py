"""plugins/integer_constants.h derives the same integers from the same scales as integer_math.py, or both refuse."""

import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from intaglio.errors import GraphError
from intaglio.plugins import integer_math
from intaglio.plugins.ort import build

Line = tuple[str, tuple[float, ...]]

EXTREME = np.array([0, -1, 1e-45, 1e-38, 2.0**-27, 2.0**-24, 1, 512, 2.0**10, 3e38, np.inf, np.nan], np.float32)


@pytest.fixture(scope="module")
def derive(tmp_path_factory, emulator):
    """The results of the C++ code for many lines, as text."""
    program = tmp_path_factory.mktemp("constants") / "constants_check"
    source = Path(__file__).with_name("constants_check.cpp")
    flags = ["-std=c++17", f"-I{build.PLUGINS.parent}"]
    subprocess.run([*build.compiler(), *flags, str(source), "-o", str(program)], check=True)

    def run(lines: list[Line]) -> list[str]:
        text = "\n".join(" ".join([kind, *(value.hex() for value in values)]) for kind, values in lines)
        done = subprocess.run([*emulator, str(program)], input=text, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    return run


def expected(kind: str, values: tuple[float, ...]) -> str:
    try:
        if kind == "gelu":
            constants = list(dataclasses.astuple(integer_math.gelu_constants(*values)))[1:]
        elif kind == "exp":
            constants = list(dataclasses.astuple(integer_math.exp_constants(*values)))
        elif kind == "softmax":
            constants = list(integer_math.softmax_constants(*values))
        else:
            channels, *scales = values
            constants = list(dataclasses.astuple(integer_math.layer_norm_constants(int(channels), *scales)))
    except GraphError:
        return "refused"
    return " ".join(map(str, constants))


def random_lines(seed: int) -> Iterator[Line]:
    random = np.random.default_rng(seed)

    def scale() -> float:
        """Any magnitude; sometimes just beside a power of two, where rounding carries over."""
        value = np.float32(np.exp(random.uniform(-25, 8)))
        if random.random() < 0.3:
            value = np.nextafter(np.float32(2.0 ** random.integers(-30, 10)), np.float32(random.choice([0, 1, 1e9])))
        return float(value)

    for _ in range(500):
        yield "gelu", (scale(), scale())
        yield "exp", (scale(),)
        yield "softmax", (scale(),)
        channels = float(random.choice([1, 2, 3, 4, 384, 768, 65535, 65536, random.integers(1, 65537)]))
        wide, epsilon = random.choice([0.0, scale()]), random.choice([0.0, 1e-12, 1e-5, 1.0])
        yield "layer_norm", (channels, *(scale() for _ in range(4)), float(wide), float(np.float32(epsilon)))


def extreme_lines() -> Iterator[Line]:
    for a in map(float, EXTREME):
        yield "exp", (a,)
        yield "softmax", (a,)
        for b in map(float, EXTREME):
            yield "gelu", (a, b)
            yield "layer_norm", (768.0, a, b, 1e-5, 0.03, 0.0, 0.0)
            yield "layer_norm", (768.0, 1e-3, 1e-4, a, b, 0.0, 0.0)
            yield "layer_norm", (768.0, 1e-3, 1e-4, 1e-5, 0.03, a, b)
    for channels in (0.0, 65537.0):
        yield "layer_norm", (channels, 1e-3, 1e-4, 1e-5, 0.03, 0.0, 0.0)


@pytest.mark.parametrize("lines", [list(random_lines(1)), list(extreme_lines())], ids=["random", "extreme"])
def test_constants_equal_the_reference(derive, lines):
    got = derive(lines)
    wrong = [(line, mine, want) for line, mine in zip(lines, got, strict=True) if mine != (want := expected(*line))]
    assert wrong == []
    assert len(set(got)) > 10
