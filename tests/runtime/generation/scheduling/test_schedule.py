"""The batch of a step, decided without a model: sessions that only have lengths, requests that only wait."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.runtime.generation.scheduling.batch import Batch
from intaglio.runtime.generation.scheduling.row_assignment import MIN_SHARED, Row, Rows
from intaglio.runtime.generation.scheduling.schedule import schedule
from intaglio.runtime.strategies import CachedModel, EncodeSource, Forward

CHUNK = 32


class Session:
    """What deciding reads of a session."""

    def __init__(self, rows: int, tree: int = 8):
        self.batch, self.lengths, self.tree = rows, [0] * rows, tree
        self.exit_thresholds = np.zeros(rows, np.float32)

    def max_tree_tokens(self, origins: int, row: int) -> int:
        return self.tree


class Machine:
    """Rows of two sessions, and requests that wait in them."""

    def __init__(self, rows: int = 8, tree: int = 8):
        self.target, self.draft = Session(rows, tree), Session(rows, tree)
        self.rows = Rows(self.target, self.draft)  # type: ignore[arg-type]
        self.running: list[tuple[Row, Any]] = []

    def add(
        self,
        prompt: Sequence[int],
        cached: int = 0,
        *,
        text: Sequence[int] = (),
        draft: bool = False,
        served: int = 0,
        reuse: bool = True,
        tree: int = 0,
    ) -> Any:
        """A request in the next row with `cached` tokens of its prompt, that waits for a pass over all of it."""
        row = self.rows._rows[len(self.running)]
        session = self.draft if draft else self.target
        session.lengths[row.number] = cached
        model = CachedModel(session, row.number, "small" if draft else "large")  # type: ignore[arg-type]
        tokens = [*prompt, *text]
        tree_tokens = list(range(tree))
        state = SimpleNamespace(
            forward=Forward(model, tokens, wanted=1, tree=tree_tokens, parents=tree_tokens, origins=[0] * bool(tree)),
            start=list(prompt),
            in_cache=list,  # there are no images
            served=served,
            sequence=SimpleNamespace(tokens=tokens),
            request=SimpleNamespace(
                reuse_prefix=reuse, adapter=None, adapter_scale=1.0, strategy=SimpleNamespace(whole_passes=True)
            ),
        )
        row.state = state  # type: ignore[assignment]
        self.running.append((row, state))
        return state

    def schedule(self, prefilled_last: bool = False) -> Batch:
        return schedule(self.running, self.rows, CHUNK, prefilled_last)


def states(batch: Batch) -> list[Any]:
    return [chunk.state for chunk in batch.chunks]


def prompt(length: int, seed: int = 1) -> list[int]:
    return [1000 * seed + place for place in range(length)]


def test_nothing_waits_and_nothing_runs() -> None:
    batch = Machine().schedule()
    assert not (batch.chunks or batch.copies or batch.prefilled or batch.source)


def test_long_prompt_is_prefilled_in_chunks_without_logits_until_the_last() -> None:
    machine = Machine()
    state = machine.add(prompt(80))
    sizes = []
    while True:
        (chunk,) = machine.schedule().chunks
        sizes.append((len(chunk.tokens), chunk.answers))
        machine.target.lengths[0] += len(chunk.tokens)
        if chunk.answers:
            break
    assert sizes == [(32, False), (32, False), (16, True)]
    assert chunk.state is state and chunk.wanted == 1


def test_prefill_and_decode_steps_alternate() -> None:
    machine = Machine()
    long, decoding = machine.add(prompt(80)), machine.add(prompt(3, 2), 2)
    assert (states(machine.schedule(False)), machine.schedule(False).kind) == ([long], "prefill")
    assert (states(machine.schedule(True)), machine.schedule(True).kind) == ([decoding], "decode")


def test_drafting_rows_go_before_prefills_and_target_rows() -> None:
    machine = Machine()
    machine.add(prompt(80))
    machine.add(prompt(3, 2), 2)
    drafting = machine.add(prompt(3, 3), 2, draft=True)
    assert states(machine.schedule(False)) == [drafting]


def test_short_prompts_share_a_pass_as_wide_as_a_chunk() -> None:
    machine = Machine()
    first, second, third = (machine.add(prompt(16, seed)) for seed in (1, 2, 3))
    assert states(machine.schedule()) == [first, second]  # three rows of 16 would be 48 tokens
    assert third not in states(machine.schedule())


def test_row_served_longest_ago_decides_the_pass_of_trees() -> None:
    machine = Machine(tree=4)
    wide = machine.add(prompt(3, 1), 3, tree=6, served=2)
    narrow = machine.add(prompt(3, 2), 3, tree=4, served=1)
    assert states(machine.schedule()) == [narrow]  # six tokens do not fit beside a tree of four
    narrow.served = 3
    assert states(machine.schedule())[0] is wide


def test_prefix_in_another_row_is_copied_not_prefilled() -> None:
    machine = Machine()
    shared = prompt(40)
    machine.add(shared, 40, text=[7, 8])
    late = machine.add([*shared, 5, 6])
    batch = machine.schedule()
    (copy,) = batch.copies
    assert (copy.state, copy.source, copy.row, copy.tokens, copy.copied) == (late, 0, 1, 40, 40)
    assert [list(chunk.tokens) for chunk in batch.chunks] == [[5, 6]]
    assert machine.target.lengths[:2] == [40, 0]  # nothing was done yet


def test_prefix_being_prefilled_by_an_earlier_row_is_awaited() -> None:
    machine = Machine()
    first = machine.add([*prompt(30), 1])
    machine.add([*prompt(30), 2])
    assert states(machine.schedule()) == [first]


@pytest.mark.parametrize("shared", [MIN_SHARED - 1, MIN_SHARED])
def test_short_prefix_is_not_copied(shared: int) -> None:
    machine = Machine()
    machine.add(prompt(shared), shared, text=[7, 8])
    machine.add([*prompt(shared), 5, 6])
    assert len(machine.schedule().copies) == (shared >= MIN_SHARED)


def test_prefix_is_not_copied_for_a_request_that_forbids_it() -> None:
    machine = Machine()
    machine.add(prompt(40), 40, text=[7, 8])
    machine.add([*prompt(40), 5, 6], reuse=False)
    batch = machine.schedule()
    assert not batch.copies and len(batch.chunks[0].tokens) == CHUNK


def test_prompt_that_is_copied_whole_needs_no_pass() -> None:
    machine = Machine()
    machine.add(prompt(40), 40, text=[7, 8])
    state = machine.add(prompt(40))
    state.forward = state.forward._replace(sequence=prompt(39), wanted=0)  # all but the last token
    batch = machine.schedule()
    assert (batch.prefilled, batch.chunks, len(batch.copies)) == ([state], [], 1)


def test_source_is_encoded_alone() -> None:
    machine = Machine()
    state = machine.add(prompt(20))
    state.forward = EncodeSource(state.forward.model)
    machine.add(prompt(20, 2))
    batch = machine.schedule()
    assert batch.source == (state, state.forward) and not batch.chunks


requests = st.tuples(
    st.integers(1, 70), st.integers(0, 70), st.integers(1, 3), st.booleans(), st.booleans(), st.integers(0, 3)
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(requests, max_size=8), st.booleans())
def test_batch_fits_and_changes_nothing(waiting: list[tuple[int, int, int, bool, bool, int]], after: bool) -> None:
    machine = Machine()
    for length, cached, seed, draft, reuse, served in waiting:
        machine.add(prompt(length, seed), min(cached, length - 1), draft=draft, reuse=reuse, served=served)
    before = [*machine.target.lengths], [*machine.draft.lengths]
    batch = machine.schedule(after)
    assert ([*machine.target.lengths], [*machine.draft.lengths]) == before
    assert batch == machine.schedule(after)
    assert bool(batch.chunks or batch.prefilled) == bool(waiting)  # something always runs
    assert len({id(chunk.forward.model.session) for chunk in batch.chunks}) <= 1
    rows = [chunk.forward.model.row for chunk in batch.chunks]
    assert len(rows) == len(set(rows))
    held = {(copy.session, copy.row): copy.tokens for copy in batch.copies}
    for chunk in batch.chunks:
        model = chunk.forward.model
        begin = held.get((model.session, model.row), model.length)
        assert chunk.tokens and list(chunk.tokens) == list(chunk.forward.sequence[begin : begin + len(chunk.tokens)])
    if batch.kind == "prefill" and batch.chunks:
        assert len(batch.chunks) * max(len(chunk.tokens) for chunk in batch.chunks) <= CHUNK
    for copy in batch.copies:
        source = machine.running[copy.source][1]
        assert copy.copied >= MIN_SHARED and source.start[: copy.tokens] == copy.state.start[: copy.tokens]
