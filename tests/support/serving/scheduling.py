"""Requests to a scheduler, and running it, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from scheduled_models import Models

from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Event
from intaglio.runtime.generation.scheduling.scheduler import Scheduler

RANDOM = np.random.default_rng(0).integers(0, 250, 2000).tolist()


def request(prompt: Any, count: int = 8, **options: Any) -> GenerationRequest:
    return GenerationRequest(prompt, max_new_tokens=count, ignore_eos=True, **options)


def run(scheduler: Scheduler) -> list[Event]:
    """All events until the scheduler is idle."""
    events: list[Event] = []
    while not scheduler.idle:
        events += scheduler.step()
    return events


def alone(models: Models, asked: GenerationRequest) -> list[int]:
    scheduler = models.scheduler(1)
    state = scheduler.submit(asked)
    run(scheduler)
    return state.tokens
