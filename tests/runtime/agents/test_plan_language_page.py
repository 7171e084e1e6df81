"""The page docs/agents/plan_language.md: its plans, errors and example match the parser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from intaglio.runtime.agents.plan.parser import PlanParser
from intaglio.runtime.agents.plan.plan import Join, PlanError
from intaglio.runtime.agents.tools.from_function import tool

PAGE = (Path(__file__).parents[3] / "docs" / "agents" / "plan_language.md").read_text("utf-8")
ERRORS = re.findall(r"^\| (`.*`) \| `(line .*)` \|$", PAGE, re.MULTILINE)


@tool
def search(query: str, limit: int = 3) -> str:
    """Search the web."""
    return query * limit


@tool
def calculate(expression: str) -> float:
    """Calculate."""
    return float(expression)


def parsed(text: str) -> PlanParser:
    parser = PlanParser({"search": search, "calculate": calculate})
    parser.push(text)
    parser.finish()
    return parser


def test_first_plan_of_the_page_is_parsed() -> None:
    plan = PAGE.split("```text\n")[1].split("```")[0]
    assert parsed(plan).join == Join()


@pytest.mark.parametrize(("lines", "error"), ERRORS)
def test_errors_match_the_page(lines: str, error: str) -> None:
    with pytest.raises(PlanError, match=f"^{re.escape(error)}$"):
        parsed("\n".join(re.findall("`([^`]*)`", lines)))


def test_page_lists_errors() -> None:
    assert len(ERRORS) == 10


def test_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})  # noqa: S102  # the page's own text
    assert "market cap of Apple" in capsys.readouterr().out
