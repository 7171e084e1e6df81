"""The grammars of agents under the strategies that draft: forbidden draft tokens are never accepted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from agent_checks import Events, answered, check_plans, small_tools
from chat_bundles import CHATML
from covering import few
from drafts import save_drafts
from event_loops import run
from scripted_model import Changed
from tiny_decoders import add_noise, altered, save_decoder, write_byte_tokenizer

from intaglio.exporters import export
from intaglio.networks.drafts import MEDUSA
from intaglio.runtime.agents.loops.agent import AgentLimits, AgentResult
from intaglio.runtime.agents.loops.joiner import joiner_grammar
from intaglio.runtime.agents.loops.llm_compiler import LLMCompiler
from intaglio.runtime.agents.models.engine_model import EngineModel
from intaglio.runtime.agents.plan.grammar import plan_grammar, turn_grammar
from intaglio.runtime.agents.run.events import PlanFailed
from intaglio.runtime.generation.generate import TextGenerator

TOOLS = list(small_tools().values())
LIMITS = AgentLimits(max_replans=1, max_request_tokens=150, max_model_calls=4)
DRAFTING: dict[str, dict[str, Any]] = {
    "auto": {},
    "speculative": {"strategy": "speculative"},
    "ngram": {"strategy": "ngram", "min_draft_prob": 1e-9},
    "medusa": {"strategy": "medusa", "tree": 8, "min_draft_prob": 1e-9},
}
PROMPTS = ["Question: how much larger is Asia?\n", "look pick both", "$1 = 3\n$2 = 4\n", "Thought: first, last, 3 "]
GRAMMARS = {
    "plan": plan_grammar(TOOLS),
    "plan after others": plan_grammar(TOOLS, known=[1, 2, 5], most=4),
    "turn": turn_grammar(TOOLS, known=[1]),
    "joiner": joiner_grammar(may_replan=True),
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A random decoder; a noisy copy, which often chooses the same tokens; one with drafts."""
    folder = tmp_path_factory.mktemp("drafting")
    checkpoint = save_decoder(folder / "checkpoint", "llama", max_position_embeddings=4096)
    write_byte_tokenizer(checkpoint, CHATML)
    export(str(checkpoint), folder / "large", check=False)
    (folder / "noisy").mkdir()
    export(str(save_drafts(checkpoint, folder / "heads", MEDUSA)), folder / "medusa", check=False)
    small = altered(checkpoint, add_noise, folder / "noisy")
    return {"large": folder / "large", "small": small, "medusa": folder / "medusa"}


def opened(bundles: Mapping[str, Path], drafting: str, **options: Any) -> TextGenerator:
    """A generator with these drafts."""
    model = bundles["medusa" if drafting == "medusa" else "large"]
    draft = bundles["small"] if drafting in ("auto", "speculative") else None
    return TextGenerator(model, draft=draft, threads=1, **DRAFTING[drafting], **options)


@pytest.mark.covering(1)
@pytest.mark.parametrize("drafting", DRAFTING)
@pytest.mark.parametrize("seed", range(3))
def test_random_drafting_model_generates_valid_plans(bundles: Mapping[str, Path], drafting: str, seed: int) -> None:
    async def main(generator: TextGenerator) -> tuple[AgentResult, Changed, Events]:
        events = Events()
        async with EngineModel(generator) as engine:
            model = Changed(engine, temperature=1.0, seed=seed)
            return await answered(LLMCompiler(model, small_tools(), LIMITS), events), model, events

    with opened(bundles, drafting, batch=2) as generator:
        result, model, events = run(main(generator), 60)
    check_plans(result, model, small_tools())
    assert all("limit" in each.reason for each in events.of(PlanFailed))  # no plan had an error
    assert result.plans and (result.complete or "limit" in result.answer)


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("count", few([40, 80], [40]))
def test_greedy_text_under_agent_grammars_equals_text_without_drafts(
    bundles: Mapping[str, Path], name: str, count: int
) -> None:
    options: dict[str, Any] = {"grammar": GRAMMARS[name], "max_new_tokens": count, "batch": len(PROMPTS)}
    plain = {}
    for model in ("large", "medusa"):
        with TextGenerator(bundles[model], threads=1, **options) as generator:
            plain[model] = [each.text for each in generator.write_batch(PROMPTS).whole()]
    assert max(map(len, plain["large"])) > 20
    for drafting in DRAFTING:
        with opened(bundles, drafting, **options) as generator:
            drafted = generator.write_batch(PROMPTS).whole()
        assert [each.text for each in drafted] == plain["medusa" if drafting == "medusa" else "large"], drafting
        if drafting != "auto":  # which may choose not to draft
            assert sum(each.accepted + each.rolled_back for each in drafted) > 0, drafting
