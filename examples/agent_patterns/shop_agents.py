"""The two ways to shop: LLMCompiler opens all items at a time, ReAct one after the other."""

from __future__ import annotations

from agent_patterns.shop_tools import Shop
from intaglio import AgentLimits
from intaglio.runtime import LLMCompiler, Model, ReAct

PLAN, ACT = "Plan the purchase.", "Buy step by step."
LIMITS = AgentLimits(max_model_calls=20, max_request_tokens=400)


def shop_compiler(model: Model, shop: Shop) -> LLMCompiler:
    """Return LLMCompiler with the shop's tools: a plan to search, then one to open the pages found, rank and buy."""
    return LLMCompiler(model, shop.tools(), LIMITS, instructions=PLAN)


def shop_react(model: Model, shop: Shop) -> ReAct:
    """Return ReAct with the same tools: it opens the same items, one in each turn."""
    return ReAct(model, shop.tools(), LIMITS, instructions=ACT)
