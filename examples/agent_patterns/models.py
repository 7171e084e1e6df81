"""The trained models of these examples, opened in the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from intaglio.errors import UsageError
from intaglio.exporters import export
from intaglio.runtime.agents.engine_model import EngineModel
from intaglio.runtime.generation.generate import TextGenerator

CHECKPOINTS = Path(__file__).parent
PLANNER, THINKER, SHOPPER = "game-planner", "thinker", "shopper"
ROWS = {PLANNER: 2, SHOPPER: 2, THINKER: 5}  # requests at a time; the thinker's: as many as states are kept


def is_trained(name: str) -> bool:
    """Whether the weights of a model are there."""
    return (CHECKPOINTS / name / "model.safetensors").is_file()


@asynccontextmanager
async def open_trained(name: str) -> AsyncIterator[EngineModel]:
    """Export one of the checkpoints, which takes some seconds, and open it.

    Each has one thread: steps of models so small are not faster with more, and the two run at the same time. Raises
    `UsageError` for a model that is not trained.
    """
    if not is_trained(name):
        raise UsageError(
            f"{CHECKPOINTS / name}: not trained yet. Run: "
            f"python examples/train_agent_models.py {name} --out {CHECKPOINTS / name}"
        )
    with TemporaryDirectory() as folder:
        bundle = Path(folder) / name
        await asyncio.to_thread(export, CHECKPOINTS / name, bundle)
        with TextGenerator(bundle, batch=ROWS[name], threads=1) as generator:
            async with EngineModel(generator, name) as model:
                yield model
