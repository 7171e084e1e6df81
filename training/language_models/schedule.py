"""The pruned fraction at each step of fine-tuning."""

from __future__ import annotations

from typing import Literal, get_args

Schedule = Literal["separate", "linear", "cubic"]
SCHEDULES: tuple[str, ...] = get_args(Schedule)


def fraction_at(schedule: Schedule, done: int, steps: int, stages: int, fraction: float) -> float:
    """The pruned fraction after `done` steps.

    It is 0 during the first `steps`; then there are `stages` stages of `steps` steps each. "separate": `fraction /
    stages` more before the first step of each stage. "linear": an equal part more before every step. "cubic":
    fraction·(1 - (1 - t)³), with t from 0 to 1 (Zhu and Gupta, "To prune, or not to prune", arXiv:1710.01878,
    equation 1).
    """
    pruning = done - steps
    if pruning < 0:
        return 0.0
    if schedule == "separate":
        return fraction * (pruning // steps + 1) / stages
    part = (pruning + 1) / (steps * stages)
    return fraction * part if schedule == "linear" else fraction * (1 - (1 - part) ** 3)
