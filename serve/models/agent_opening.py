"""Open the agents of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from intaglio.errors import BundleError, UsageError
from intaglio.runtime.agents.loops.examples import read_examples
from intaglio.runtime.agents.loops.planners import agent_of
from intaglio.runtime.agents.models.engine_model import EngineModel
from intaglio.runtime.agents.models.model import Model
from intaglio.runtime.agents.models.open_model import is_url, open_model
from intaglio.runtime.agents.open_tools import open_tools
from intaglio.serve.models.agent_description import AgentDescription
from intaglio.serve.models.model import DecoderModel, Models
from intaglio.serve.models.served_agent import ServedAgent


def check_descriptions(descriptions: Sequence[AgentDescription], bundles: Mapping[str, Path]) -> None:
    """Raise `UsageError` for a name that is taken, and for a model that is neither one of `bundles` nor a URL."""
    taken = set(bundles)
    for each in descriptions:
        if each.name in taken:
            raise UsageError(f"agent {each.name!r}: the name is taken. Choose another one.")
        taken.add(each.name)
        if each.model not in bundles and not is_url(each.model):
            served = ", ".join(bundles)
            raise UsageError(f"agent {each.name!r}: model {each.model!r:.80}, expected one of {served}, or a URL.")
        if each.model in bundles and each.model_name is not None:
            raise UsageError(f"agent {each.name!r}: model_name is for a model at a URL. Leave it out.")


@asynccontextmanager
async def open_agents(
    descriptions: Sequence[AgentDescription], models: Models
) -> AsyncIterator[dict[str, ServedAgent]]:
    """Open the tools and models of agents, by their names, until the context is left; the models have started.

    Raises `UsageError`, `ToolError`, `ModelError` for what cannot be opened.
    """
    async with AsyncExitStack() as stack:
        opened = {}
        for each in descriptions:
            tools = await stack.enter_async_context(open_tools(each.tools, each.limits.tool_timeout))
            examples = () if each.examples is None else read_examples(Path(each.examples), tools, f"agent {each.name}:")
            model = await stack.enter_async_context(_model(each, models))
            agent = agent_of(each.planner, model, tools, each.limits, examples, each.streaming, each.grammar)
            opened[each.name] = ServedAgent(each, agent)
        yield opened


def _model(description: AgentDescription, models: Models) -> AbstractAsyncContextManager[Model]:
    """The model of an agent: one of the server's own shares its rows with all other requests."""
    if description.model not in models.by_name:
        return open_model(description.model, model=description.model_name, constrained=description.grammar)
    decoder = models.by_name[description.model]
    if not isinstance(decoder, DecoderModel):
        raise UsageError(f"agent {description.name!r}: model {description.model!r} generates no text. Choose another.")
    try:
        return EngineModel(decoder.worker.generator, decoder.name, decoder.worker)
    except BundleError as error:
        raise UsageError(f"agent {description.name!r}: {error}") from error
