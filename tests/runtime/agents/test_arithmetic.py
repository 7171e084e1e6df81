"""The tool `calculate`, against Python's own exact fractions."""

from __future__ import annotations

import re
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.runtime.agents.run.observation import as_text
from intaglio.runtime.agents.toolbox.arithmetic import CALCULATE, MOST_CHARACTERS, calculate, evaluate
from intaglio.runtime.agents.tools.tool import ToolError

NUMBERS = st.integers(0, 99).map(str) | st.decimals(0, 99, places=2).map(str)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" + ", "-", "*", " / ", "//", " % "]), inner).map("".join),
        st.tuples(inner, st.sampled_from(["**2", "**-1", "**3"])).map("".join),
        inner.map("({})".format),
        inner.map("-{}".format),
    ),
    max_leaves=8,
)


def python_value(expression: str) -> Fraction | type[Exception]:
    """The value that Python computes with every number a fraction, or the exception."""
    try:
        exact = eval(re.sub(r"[\d.]+", r"Fraction('\g<0>')", expression), {"Fraction": Fraction})  # noqa: S307
    except ZeroDivisionError:
        return ZeroDivisionError
    return Fraction(exact)


@given(EXPRESSIONS.filter(lambda text: not re.search(r"% *-", text)))
@settings(deadline=None)
def test_expressions_equal_pythons_values(expression: str) -> None:
    expected = python_value(expression)
    if isinstance(expected, Fraction):
        value = evaluate(expression)
        assert value == (expected if isinstance(value, Fraction) else pytest.approx(float(expected), rel=1e-12))
    else:
        with pytest.raises(ToolError, match="divides by zero"):
            evaluate(expression)


@given(st.text(max_size=60) | st.text("0123456789.,+-*/%^()[] e$<=", max_size=60))
@settings(deadline=None)
def test_any_text_has_a_value_or_a_one_line_error(text: str) -> None:
    try:
        calculate(text)
    except ToolError as error:
        assert str(error).startswith("calculate: ") and len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0.1 + 0.2", "0.3"),
        ("1/3", "0.333333333333333"),
        ("7/2", "3.5"),
        ("sqrt(2) ** 2", "2"),
        ("4 ** 0.5", "2"),
        ("sqrt(1/4)", "0.5"),
        ("2**100", "1267650600228229401496703205376"),
        ("-2**2", "-4"),
        ("2**3**2", "512"),
        ("2^-1", "0.5"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("round((1 + 0.05/365) ** (365*10), 6)", "1.648665"),
        ("round(2.5)", "3"),
        ("round(-2.675, 2)", "-2.68"),
        ("round(sqrt(2), 3)", "1.414"),
        ("round(1234, -2)", "1200"),
        ("mean([1, 2, 4])", "2.33333333333333"),
        ("sum(1, 2, 3) + median(5, 1)", "9"),
        ("max(1, 2) - min(3, 4)", "-1"),
        ("log(exp(2)) + log(8, 2) + ln(e) + log10(1000)", "9"),
        ("3.2 > 2.9", "true"),
        ("0.1 + 0.2 == 0.3", "true"),
        ("1_000 + 1,234,567.5", "1235567.5"),
        ("$1,200 / 4", "300"),
        ("2.5 million * 2", "5000000"),
        ("450 km / 3 km", "150"),
        ("20%", "0.2"),
        ("15% of 80", "12"),
        ("100 * (1 + 10%)", "110"),
        ("10 % 4", "2"),
        ("6 × 7 − 2 ÷ 4", "41.5"),
        (".5 + 5.", "5.5"),
        ("1e3", "1000"),
        ("1e-400", "0"),
        ("(-1)**(10**300)", "1"),
    ],
)
def test_values_are_formatted_for_people(expression: str, expected: str) -> None:
    assert as_text(calculate(expression)) == expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("x + 1", "unknown name 'x'. Expected numbers.* sqrt"),
        ("2x + 3", "expected an operator between 2 and 'x'"),
        ("5²", "unexpected '²'"),
        ("2 +", "got the end after '2 \\+', expected a number"),
        ("(1", "got the end after '\\( 1', expected '\\)'"),
        ("1)", "got '\\)' after '1', expected an operator"),
        ("", "got the end"),
        ("1 2", "got '2' after '1', expected an operator"),
        ("1,23", "got ',' after '1'"),
        ("max(100,200)", "may be one number or several. Write 100200 or 100, 200"),
        ("10 % -3", "percentage or a remainder"),
        ("5 km + 3 miles", "units 'km' and 'miles'"),
        ("5 m", "may be a unit or a scale"),
        ("1/0", "divides by zero"),
        ("0**-1", "divides by zero"),
        ("sqrt(-4)", "sqrt\\(-4.0\\) has no value"),
        ("log(0)", "log\\(0.0\\) has no value"),
        ("(-8)**(1/3)", "not a real number"),
        ("sqrt(1, 2)", "sqrt got 2 arguments, expected 1"),
        ("max()", "max got 0 arguments, expected 1 or more"),
        ("__import__('os')", "unexpected '_'"),
        ("1 < 2 < 3", "got '<'"),
    ],
)
def test_errors_state_what_was_expected(expression: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        calculate(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9**9",
        "10**400",
        "1e999999999",
        "1e-99999999999999999999",
        "exp(1000)",
        "(" * 1000 + "1" + ")" * 1000,
        "-" * 1000 + "1",
        "2" + "**2" * 1000,
        "9" * MOST_CHARACTERS,
        "1" * (MOST_CHARACTERS + 1),
        "[" * 1000,
        "sum(" + "[" * 1000,
        "round(2, 10**300)",
        "*".join(["9999999"] * 500),
    ],
)
def test_large_expression_is_rejected_quickly(expression: str) -> None:
    began = time.perf_counter()
    with pytest.raises(ToolError):
        calculate(expression)
    assert time.perf_counter() - began < 1.0


def test_sum_of_many_fractions_is_fast() -> None:
    expression = "+".join(f"1/{each}" for each in range(1, 600))
    assert calculate(expression) == pytest.approx(sum(1 / each for each in range(1, 600)), rel=1e-12)


def test_schema_names_the_functions_parameter() -> None:
    assert CALCULATE.function(**{next(iter(CALCULATE.properties)): "1 + 1"}) == 2
