"""Plans in the forms that models write: parsed as intended or rejected, for any piece boundaries."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from agent_plans import STRING, TOOLS, made
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_forms import FORMS, Form

from intaglio.runtime.agents.plan.parser import PlanParser
from intaglio.runtime.agents.plan.plan import Call, PlanError
from intaglio.runtime.agents.plan.text import rendered

KNOWN = {**TOOLS, "read_page": made("read_page", {"url": STRING}, ["url"])}


def read(pieces: Iterable[str]) -> tuple[list[str], bool, str]:
    """The calls of a plan, whether it has an end, and its error."""
    parser, calls = PlanParser(KNOWN), list[Call]()
    try:
        for piece in pieces:
            calls += parser.push(piece)
        calls += parser.finish()
    except PlanError as error:
        return [rendered(call) for call in calls], parser.join is not None, str(error)
    return [rendered(call) for call in calls], parser.join is not None, ""


@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
def test_form_is_parsed_as_intended_or_rejected(form: Form) -> None:
    found = read([form.text])
    calls, joined, error = found
    meant, ended, problem = read([form.calls]) if form.calls else ([], False, "")
    assert problem == "" and (calls, joined) == (meant, ended)
    assert form.error in error and bool(form.error) == bool(error)
    assert read(form.text) == found


@settings(deadline=None)
@given(form=st.sampled_from(FORMS), data=st.data())
def test_form_is_parsed_equally_for_any_pieces(form: Form, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(form.text)), max_size=8)))
    pieces = [form.text[a:b] for a, b in zip([0, *places], [*places, len(form.text)], strict=True)]
    assert read(pieces) == read([form.text])


def test_enough_forms_are_tested() -> None:
    assert len(FORMS) >= 120
