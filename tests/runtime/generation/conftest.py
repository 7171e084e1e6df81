from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.runtime.generation.scheduling.scheduler import Scheduler
from intaglio.runtime.generation.scheduling.scheduler_options import SchedulerOptions
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.step import decoder_of


@pytest.fixture(scope="session")
def long(make_decoder: Callable[..., tuple[Path, Path]]) -> Callable[..., Scheduler]:
    """A function that makes a scheduler of a model of 1024 positions, which also drafts for itself."""
    bundle = Bundle.open(make_decoder("llama", max_position_embeddings=1024)[1])
    engine = OnnxRuntimeEngine(bundle, threads=1)

    def scheduler(rows: int = 4, **options: int) -> Scheduler:
        sessions = [DecoderSession(engine, decoder_of(bundle), rows) for _ in range(2)]
        return Scheduler(bundle, *sessions, SchedulerOptions(**options))

    return scheduler
