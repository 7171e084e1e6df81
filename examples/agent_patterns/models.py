"""The trained models of these examples, opened in the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from intaglio import TextGenerator
from intaglio.exporters import export
from intaglio.runtime import EngineModel

CHECKPOINTS = Path(__file__).parent
PLANNER, THINKER, SHOPPER = "game-planner", "thinker", "shopper"
ROWS = {PLANNER: 2, SHOPPER: 2, THINKER: 5}  # requests at a time; the thinker's: as many as states are kept


@asynccontextmanager
async def open_trained(name: str) -> AsyncIterator[EngineModel]:
    """Export one of the checkpoints, which takes some seconds, and open it.

    Each has one thread, as two run at the same time.
    """
    with TemporaryDirectory() as folder:
        bundle = Path(folder) / name
        await asyncio.to_thread(export, CHECKPOINTS / name, bundle)
        with TextGenerator(bundle, batch=ROWS[name], threads=1) as generator:
            async with EngineModel(generator, name) as model:
                yield model
