"""What an agent is: it answers a question with tools and a model, within limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from intaglio.errors import UsageError
from intaglio.runtime.agents.events import Observer
from intaglio.runtime.agents.model import Usage
from intaglio.runtime.agents.observation import Observation
from intaglio.runtime.agents.plan_value_grammar import MOST_STRING_CHARACTERS, STRING_CHARACTERS


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
    string_characters: int = STRING_CHARACTERS  # of a string in a plan, see `plan_grammar`

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name.endswith("seconds"):
                fits, expected = 0 < value < float("inf"), "more than 0"
            elif name == "replans":
                fits, expected = value >= 0, "0 or more"
            elif name == "string_characters":
                fits, expected = 1 <= value <= MOST_STRING_CHARACTERS, f"1 to {MOST_STRING_CHARACTERS}"
            else:
                fits, expected = value >= 1, "at least 1"
            if not fits:
                raise UsageError(f"{name.replace('_', ' ')} {value}: expected {expected}.")


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
