"""The tool `calculate`: arithmetic by a Pratt parser, without `eval`.

Numbers are exact fractions, so that 0.1 + 0.2 is 0.3, until a function such as `sqrt`, or a size beyond `MOST_BITS`,
makes them floats. All work is bounded: the length and depth of the expression, and the size of every number in it.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from intaglio.runtime.agents.toolbox.arithmetic_functions import (
    FUNCTIONS,
    MANY,
    MOST_EXPONENT,
    Number,
    bounded,
    power,
)
from intaglio.runtime.agents.tools.tool import Tool, ToolError

MOST_CHARACTERS = 4000  # of an expression
MOST_DEPTH = 50  # of parentheses, signs and powers in each other

SIGNS = str.maketrans("−–×·÷", "--**/")
SCALES = {
    "percent": Fraction(1, 100),
    "thousand": Fraction(10**3),
    "million": Fraction(10**6),
    "billion": Fraction(10**9),
    "trillion": Fraction(10**12),
}
AMBIGUOUS = frozenset("kKmMbBtT")  # 3 m: metres or millions
CONSTANTS = {"pi": math.pi, "e": math.e}
UNITS = re.compile(
    r"mm|cm|km|(kilo)?met(er|re)s?|inch(es)?|ft|feet|yards?|mi|miles?|kg|(kilo)?grams?|lbs?|pounds?|tons?|tonnes?"
    r"|lit(er|re)s?|gallons?|(second|minute|hour|day|week|month|year)s?|USD|EUR|GBP|JPY|(dollar|euro|cent)s?|people"
)
TOKEN = re.compile(
    r"\s*(?:(?P<number>[$€£¥]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d[\d_]*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[^\W\d_]\w*)|(?P<sign>\*\*|//|<=|>=|==|!=|[-+*/%^()\[\],<>]))"
)
COMPARISONS: dict[str, Callable[[Number, Number], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
BINDING = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "of": 2, "**": 4, "^": 4}
SIGN_BINDING = 3  # -2**2 is -4
FIELD: dict[str, Callable[[Number, Number], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "of": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}

HELP = f"Expected numbers, + - * / // % ** ( ), pi, e, and one of {', '.join(FUNCTIONS)}."


class Lexeme(NamedTuple):
    """A piece of an expression; the kind "end" follows the last one."""

    kind: str  # "number", "name", "sign" or "end"
    text: str


def calculate(expression: str) -> int | float | bool:
    """Return the value of `expression`, rounded to 15 digits if it is not a whole number.

    Raises `ToolError` for what is not an expression, has no value (1/0, log(0)), or is too large.
    """
    value = evaluate(expression)
    if isinstance(value, bool):
        return value
    if isinstance(value, Fraction) and value.denominator == 1:
        return int(value)
    rounded = float(f"{float(value):.15g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def evaluate(expression: str) -> Number | bool:
    """Return the value of `expression`: a fraction where it is exact, or a float. Raises `ToolError`."""
    if len(expression) > MOST_CHARACTERS:
        raise ToolError(f"calculate: {len(expression)} characters, expected at most {MOST_CHARACTERS}.")
    parser = _Parser(_tokens(expression))
    try:
        return parser.whole()
    except ZeroDivisionError:
        raise ToolError(f"calculate: {expression.strip()!r:.200} divides by zero.") from None
    except OverflowError:
        raise ToolError(f"calculate: {expression.strip()!r:.200} has a number above 1.8e308.") from None


def _tokens(expression: str) -> list[Lexeme]:
    text, tokens, position = expression.translate(SIGNS).rstrip(), [], 0
    while position < len(text):
        found = TOKEN.match(text, position)
        if found is None or (found["name"] and not found["name"][0].isalpha()):  # 5² has a "letter" that is none
            rest = text[position:].strip()
            raise ToolError(f"calculate: unexpected {rest[0]!r} before {rest[1:21]!r}. {HELP}")
        kind = found.lastgroup or ""
        tokens.append(Lexeme(kind, found[kind]))
        position = found.end()
    return [*tokens, Lexeme("end", "")]


# Not Python's `ast`: it reads no 20%, $1,200 or 450 km, rounds 0.1, and its errors do not say what was expected.
class _Parser:
    """A Pratt parser that computes as it reads: operators bind as in Python, % without a right side is percent."""

    def __init__(self, tokens: Sequence[Lexeme]):
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        self._calls = 0  # functions around this position
        self._unit: str | None = None

    def whole(self) -> Number | bool:
        left = self._expression(0)
        compare = COMPARISONS.get(self._peek().text)
        if compare is not None:
            self._advance()
            right = self._expression(0)
        if self._peek().kind != "end":
            raise self._unexpected("an operator")
        return left if compare is None else compare(left, right)

    def _expression(self, binding: int) -> Number:
        """Read operands joined by operators that bind more tightly than `binding`."""
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise ToolError(f"calculate: nested more than {MOST_DEPTH} deep. Split the expression.")
        value = self._operand()
        while (own := BINDING.get(sign := self._peek().text, 0)) > binding:
            self._advance()
            if sign == "%" and self._is_percent():
                value = bounded(value / 100)
            elif own == BINDING["**"]:
                value = power(value, self._expression(own - 1))  # 2**3**2 is 2**9
            else:
                value = bounded(FIELD[sign](value, self._expression(own)))
        self._depth -= 1
        return value

    def _is_percent(self) -> bool:
        """Whether a % that was just read ends its operand, as in 20% or 20% of 50, and is no remainder."""
        after = self._peek()
        if after.text in ("+", "-"):
            raise ToolError(f"calculate: '% {after.text}' may be a percentage or a remainder. Add parentheses.")
        return after.text == "of" or not (after.kind in ("number", "name") or after.text == "(")

    def _operand(self) -> Number:
        token = self._advance()
        match token:
            case Lexeme("number"):
                return self._number(token.text)
            case Lexeme("name"):
                return self._named(token.text)
            case Lexeme("sign", "-"):
                return -self._expression(SIGN_BINDING)
            case Lexeme("sign", "+"):
                return self._expression(SIGN_BINDING)
            case Lexeme("sign", "("):
                value = self._expression(0)
                self._expect(")")
                return value
        self._next -= 1
        raise self._unexpected("a number")

    def _number(self, text: str) -> Number:
        """Read a number, and the scale or the unit after it: $1,200, 2.5 million, 40 km."""
        if "," in text and self._calls:
            raise ToolError(
                f"calculate: {text!r} in a function may be one number or several. "
                f"Write {text.replace(',', '')} or {text.replace(',', ', ')}."
            )
        plain = text.lstrip("$€£¥").replace(",", "").replace("_", "")
        exponent = re.split("[eE]", plain)[1:]
        if exponent and abs(int(exponent[0][:9])) > MOST_EXPONENT:
            raise ToolError(f"calculate: {text!r:.40} expected an exponent from -{MOST_EXPONENT} to {MOST_EXPONENT}.")
        value: Number = Fraction(plain)
        word = self._peek()
        if word.kind == "name" and word.text not in BINDING:
            self._advance()
            if word.text.lower() in SCALES:
                value = value * SCALES[word.text.lower()]
            else:
                self._drop_unit(text, word.text)
        return bounded(value)

    def _drop_unit(self, number: str, unit: str) -> None:
        """Ignore a unit, if the expression has no other."""
        if unit in AMBIGUOUS:
            raise ToolError(f"calculate: '{number} {unit}' may be a unit or a scale. Leave it out, or write million.")
        if not UNITS.fullmatch(unit):
            raise ToolError(f"calculate: expected an operator between {number} and {unit!r:.40}. {HELP}")
        if self._unit not in (None, unit):
            raise ToolError(f"calculate: units {self._unit!r:.40} and {unit!r:.40}. Convert the numbers to one unit.")
        self._unit = unit

    def _named(self, name: str) -> Number:
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name not in FUNCTIONS:
            raise ToolError(f"calculate: unknown name {name!r:.40}. {HELP}")
        self._expect("(")
        self._calls += 1
        arguments = self._arguments(")")
        self._calls -= 1
        function, least, most = FUNCTIONS[name]
        if not least <= len(arguments) <= most:
            expected = f"{least} or more" if most == MANY else f"{least}" if least == most else f"{least} or {most}"
            raise ToolError(f"calculate: {name} got {len(arguments)} arguments, expected {expected}.")
        try:
            return bounded(function(*arguments))
        except ValueError:
            given = ", ".join(str(calculated) for calculated in map(float, arguments))
            raise ToolError(f"calculate: {name}({given:.80}) has no value.") from None

    def _arguments(self, end: str) -> list[Number]:
        """Read what is between the parentheses of a function; a list is its items: sum([1, 2])."""
        values: list[Number] = []
        while self._peek().text != end:
            if self._peek().text == "[" and end == ")":
                self._advance()
                values += self._arguments("]")
            else:
                values.append(self._expression(0))
            if self._peek().text != end:
                self._expect(",")
        self._advance()
        return values

    def _peek(self) -> Lexeme:
        return self._tokens[self._next]

    def _advance(self) -> Lexeme:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _expect(self, sign: str) -> None:
        if self._peek().text != sign:
            raise self._unexpected(repr(sign))
        self._advance()

    def _unexpected(self, expected: str) -> ToolError:
        before = " ".join(token.text for token in self._tokens[: self._next])[-40:]
        got = "the end" if self._peek().kind == "end" else repr(self._peek().text[:40])
        return ToolError(f"calculate: got {got} after {before!r}, expected {expected}. {HELP}")


CALCULATE = Tool(
    "calculate",
    "Calculate an arithmetic expression and return the number, or true or false for a comparison. "
    "Operators: + - * / // % ** ( ) < <= > >= == !=; 20% is 0.2, and 20% of 50 is 10. Log is the natural logarithm. "
    f"Functions: {', '.join(FUNCTIONS)}. Constants: pi, e.",
    {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": 'such as "(3 + 4) * 2" or "sqrt(2)"'}},
        "required": ["expression"],
        "additionalProperties": False,
    },
    calculate,
)
