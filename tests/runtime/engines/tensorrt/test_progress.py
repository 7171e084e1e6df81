import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.runtime.engines.tensorrt.progress import Phases, interruptible


def test_inner_phases_advance_the_total_by_their_share() -> None:
    phases = Phases()
    phases.start("build", 4)
    phases.step("build", 0)
    assert phases.done == 0.25
    phases.start("optimise", 2)
    phases.step("optimise", 0)
    assert phases.done == pytest.approx(0.375)
    phases.finish("optimise")
    phases.step("build", 3)
    assert phases.done == 1.0


calls = st.tuples(st.sampled_from(["start", "step", "finish"]), st.sampled_from("abc"), st.integers(0, 5))


@given(st.lists(calls, max_size=40))
def test_progress_is_bounded_and_monotonic_for_any_phase_order(sequence: list[tuple[str, str, int]]) -> None:
    phases, before = Phases(), 0.0
    for call, phase, number in sequence:
        if call == "finish":
            phases.finish(phase)
        else:
            getattr(phases, call)(phase, number)
        assert before <= phases.done <= 1.0
        before = phases.done


def test_other_threads_leave_the_signal_handler_alone() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with interruptible() as interrupted:
                assert not interrupted.is_set()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == []
