"""Engines (ONNX Runtime, TensorRT), building them, running a bundle on text, generating text, and agents.

Names are imported on first use, so that help texts can read the strategies without ONNX.
"""

from intaglio.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from intaglio.runtime.agents.loops.function_calling import FunctionCalling
    from intaglio.runtime.agents.loops.llm_compiler import LLMCompiler
    from intaglio.runtime.agents.loops.prompts import (
        FUNCTION_RULES,
        LAST_RULE,
        PLAN_RULES,
        TURN_RULES,
        question_prompt,
        replan_prompt,
        result_line,
        results_prompt,
    )
    from intaglio.runtime.agents.loops.react import ReAct
    from intaglio.runtime.agents.models.engine_model import EngineModel
    from intaglio.runtime.agents.models.model import End, Model, ModelPiece, ModelRequest, Usage
    from intaglio.runtime.agents.plan.grammar import plan_grammar
    from intaglio.runtime.agents.plan.parser import PlanParser
    from intaglio.runtime.agents.plan.plan import Call
    from intaglio.runtime.agents.plan.text import decoded, rendered, rendered_plan
    from intaglio.runtime.agents.reports.timeline import timeline
    from intaglio.runtime.agents.reports.trace import read_trace
    from intaglio.runtime.agents.run.observation import Observation, as_text
    from intaglio.runtime.agents.toolbox.arithmetic import CALCULATE, calculate
    from intaglio.runtime.agents.toolbox.text_search import TextIndex
    from intaglio.runtime.agents.tools.mcp_server import serve_tools
    from intaglio.runtime.engines.build import build
    from intaglio.runtime.engines.engine import Engine
    from intaglio.runtime.engines.opening import open_engine
    from intaglio.runtime.generation.generate import TextGenerator, generate
    from intaglio.runtime.generation.requests.chat import ChatPrompt
    from intaglio.runtime.generation.tool_calls.calling import tool_calling
    from intaglio.runtime.run_bundle import run
    from intaglio.runtime.sampling.grammar import GrammarConstraint
    from intaglio.runtime.text.similarities import similarity

__all__ = [
    "CALCULATE",
    "FUNCTION_RULES",
    "LAST_RULE",
    "PLAN_RULES",
    "TURN_RULES",
    "Call",
    "ChatPrompt",
    "End",
    "Engine",
    "EngineModel",
    "FunctionCalling",
    "GrammarConstraint",
    "LLMCompiler",
    "Model",
    "ModelPiece",
    "ModelRequest",
    "Observation",
    "PlanParser",
    "ReAct",
    "TextGenerator",
    "TextIndex",
    "Usage",
    "as_text",
    "build",
    "calculate",
    "decoded",
    "generate",
    "open_engine",
    "plan_grammar",
    "question_prompt",
    "read_trace",
    "rendered",
    "rendered_plan",
    "replan_prompt",
    "result_line",
    "results_prompt",
    "run",
    "serve_tools",
    "similarity",
    "timeline",
    "tool_calling",
]

# Name -> the module that has it, as above.
_MODULES = {
    name: f"intaglio.runtime.{module}"
    for module, names in {
        "agents.loops.function_calling": "FunctionCalling",
        "agents.loops.llm_compiler": "LLMCompiler",
        "agents.loops.prompts": (
            "FUNCTION_RULES LAST_RULE PLAN_RULES TURN_RULES question_prompt replan_prompt result_line results_prompt"
        ),
        "agents.loops.react": "ReAct",
        "agents.models.engine_model": "EngineModel",
        "agents.models.model": "End Model ModelPiece ModelRequest Usage",
        "agents.plan.grammar": "plan_grammar",
        "agents.plan.parser": "PlanParser",
        "agents.plan.plan": "Call",
        "agents.plan.text": "decoded rendered rendered_plan",
        "agents.reports.timeline": "timeline",
        "agents.reports.trace": "read_trace",
        "agents.run.observation": "Observation as_text",
        "agents.toolbox.arithmetic": "CALCULATE calculate",
        "agents.toolbox.text_search": "TextIndex",
        "agents.tools.mcp_server": "serve_tools",
        "engines.build": "build",
        "engines.engine": "Engine",
        "engines.opening": "open_engine",
        "generation.generate": "TextGenerator generate",
        "generation.requests.chat": "ChatPrompt",
        "generation.tool_calls.calling": "tool_calling",
        "run_bundle": "run",
        "sampling.grammar": "GrammarConstraint",
        "text.similarities": "similarity",
    }.items()
    for name in names.split()
}

if not TYPE_CHECKING:  # a type checker would take any name for one of this module's
    __getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    """The names of this module, including those not imported yet."""
    return sorted({*globals(), *__all__})
