"""What an agent is: it answers a question with tools and a model, within limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from intaglio.errors import UsageError
from intaglio.runtime.agents.events import Observer
from intaglio.runtime.agents.model import Usage
from intaglio.runtime.agents.observation import Observation


@dataclass(frozen=True)
class AgentLimits:
    """Limits of a run, which ends with an answer that names the limit. Raises `UsageError` for values out of range."""

    replans: int = 3  # plans after the first one
    model_calls: int = 16
    tokens: int = 1 << 16  # that the models write, in all
    request_tokens: int = 1024  # that a model writes for one request
    seconds: float = 300.0  # of the run
    tasks: int = 1000  # calls of tools, in all plans
    parallel: int = 64  # calls of tools at a time
    tool_seconds: float = 60.0  # for one call, where the tool has no limit of its own
    observation_characters: int = 4000  # of one result, in the prompts

    def __post_init__(self) -> None:
        if self.replans < 0:
            raise UsageError(f"replans {self.replans}: expected 0 or more.")
        for name in ("model_calls", "tokens", "request_tokens", "tasks", "parallel", "observation_characters"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name.replace('_', ' ')} {getattr(self, name)}: expected at least 1.")
        for name in ("seconds", "tool_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name.replace('_', ' ')} {getattr(self, name)}: expected more than 0.")


@dataclass(frozen=True)
class AgentResult:
    """The answer of a run."""

    answer: str
    complete: bool  # False: a limit, or a failure, ended the run; the answer says which
    observations: Mapping[int, Observation]  # by the call's number
    usage: Usage
    seconds: float
    plans: Sequence[str] = ()  # the texts that the planner wrote


class Agent(Protocol):
    """A loop over a model and tools: `LLMCompiler`, `ReAct`, `FunctionCalling`."""

    async def run(self, question: str, observer: Observer | None = None) -> AgentResult:
        """Answer `question`. Never raises for what a model or a tool does; cancelling it stops everything."""
        ...
