"""Generation under a grammar: every strategy obeys it, exact strategies equal plain decoding, texts end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import few
from jsonschema import Draft202012Validator
from scheduled_models import Models
from tokenizers import Tokenizer

from intaglio.errors import UsageError
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Failed
from intaglio.runtime.generation.scheduling.request_state import RequestState
from intaglio.runtime.sampling.grammar import Grammar, GrammarConstraint
from intaglio.runtime.sampling.sampler import Sampling
from intaglio.runtime.strategies import STRATEGIES, Emitted
from intaglio.runtime.strategies.ngram_drafts import NgramDrafter
from intaglio.runtime.strategies.tree_growth import grow

SCHEMAS = Path(__file__).parents[3] / "benchmarks" / "decoding" / "schemas.jsonl"
DOZEN = [json.loads(line) for line in SCHEMAS.read_text("utf-8").splitlines()][1::4]
PROMPT = list(b"yes no [1, 2] yes no ")
WORDS = "((yes|no|nay) ){6}"
EXACT = [
    *(("float", name) for name in ("speculative", "ngram", "auto")),
    *((kind, kind) for kind in ("medusa", "hidden-transfer")),
    ("exit", "speculative"),
    ("t5", "speculative"),
]
OPTIONS: dict[str, dict[str, Any]] = {
    "medusa": {"tree": 8, "min_draft_prob": 1e-9},
    "hidden-transfer": {"tree": 8, "min_draft_prob": 1e-9},
    "ngram": {"min_draft_prob": 1e-9},
    "bild": {"fallback": 0.0, "rollback": 3.0},
}


@pytest.fixture(scope="module")
def tokenizer(models: dict[str, Models]) -> Tokenizer:
    return models["float"].scheduler().prompts.tokenizer


def write(models: Models, grammar: Grammar, name: str = "greedy", **options: Any) -> RequestState:
    """Generate after `PROMPT`; without `end_tokens`, the text ends where the grammar does."""
    defaults = {"max_new_tokens": 60, "ignore_eos": True, "end_tokens": frozenset()}
    given = {**defaults, **options}
    constraint = GrammarConstraint(grammar, given["end_tokens"])
    strategy = STRATEGIES[name](**OPTIONS.get(name, {}))
    scheduler = models.scheduler()
    state = scheduler.submit(GenerationRequest(PROMPT, strategy=strategy, constraint=constraint, **given))
    while not scheduler.idle:
        for event in scheduler.step():
            if isinstance(event, Failed):
                raise event.error
    return state


@pytest.mark.parametrize(("kind", "name"), EXACT)
@pytest.mark.parametrize("kind_of_grammar", ["words", "schema", "endless"])
def test_greedy_text_with_drafts_equals_plain_decoding(
    kind: str, name: str, kind_of_grammar: str, models: dict[str, Models], tokenizer: Tokenizer
) -> None:
    schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 4, "maxItems": 8}
    grammar = {
        "words": lambda: Grammar.from_regex(WORDS, tokenizer),
        "schema": lambda: Grammar.from_json_schema(schema, tokenizer),
        "endless": lambda: Grammar.from_lark('start: ("ab" | "b" /[0-9]/)+', tokenizer),
    }[kind_of_grammar]()
    state, plain = write(models[kind], grammar, name), write(models[kind], grammar)
    assert state.tokens == plain.tokens
    assert state.result().stopped == plain.result().stopped
    if kind_of_grammar == "words":
        assert re.fullmatch(WORDS, state.result().text)
        assert state.result().stopped == "eos"  # without any end token, and before the maximum length


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.5)], ids=["greedy", "sampled"])
def test_forced_tokens_need_no_pass(sampling: Sampling, models: dict[str, Models], tokenizer: Tokenizer) -> None:
    """With log-probabilities every token needs logits: the text is the same, with a pass for each of them."""
    grammar = Grammar.from_regex('[{]"name": "(Ada|Bob)", "of the house of": "[A-Z]{3}"[}]', tokenizer)
    found = [write(models["float"], grammar, sampling=sampling, seed=5, logprobs=top) for top in (None, 0)]
    first, second = (state.result() for state in found)
    assert first.text == second.text
    assert second.calls.large == len(second.tokens)
    assert first.calls.large <= len(first.tokens) // 2
    assert [len(state.result().logprobs or ()) for state in found] == [0, len(second.tokens)]


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("name", ["bild", "speculative", "ngram", "sample"])
def test_finished_texts_match_the_grammar(
    name: str, sampled: bool, models: dict[str, Models], tokenizer: Tokenizer
) -> None:
    grammar = Grammar.from_regex(WORDS, tokenizer)
    for seed in range(5):
        sampling = Sampling(1.5) if sampled else Sampling()
        result = write(models["float"], grammar, name, sampling=sampling, seed=seed).result()
        assert result.stopped == "eos"
        assert re.fullmatch(WORDS, result.text)


def test_ngram_drafts_that_break_the_grammar_are_not_verified(models: dict[str, Models], tokenizer: Tokenizer) -> None:
    grammar = Grammar.from_regex(WORDS, tokenizer)
    state = write(models["float"], grammar, "ngram")
    fresh, written, draft = GrammarConstraint(grammar, ()), list[int](), list[Emitted]()
    for each in state.result().trace:
        draft.append(each)
        if each.by == "large":
            assert fresh.count_allowed(written, [token for token, *_ in draft[:-1]]) == len(draft) - 1
            written += [token for token, _, rolled_back in draft if not rolled_back]
            draft = []
    assert state.counts.accepted > 0


def test_tree_holds_only_allowed_paths(tokenizer: Tokenizer) -> None:
    grammar = Grammar.from_regex("[a-c]{2}[x-z]{2}", tokenizer)
    constraint, root = GrammarConstraint(grammar, ()), tokenizer.encode("a").ids
    drafts = np.random.default_rng(0).normal(size=(3, tokenizer.get_vocab_size())).astype(np.float32)
    drafts[:, tokenizer.encode("abcxyz").ids] += 12

    def allows(path: Sequence[int]) -> bool:
        return constraint.count_allowed(root, path) == len(path)

    tree = grow(root[0], drafts, 20, 1e-12, NgramDrafter(0), allows)
    assert len(tree.tokens) > 6
    for place in range(1, len(tree.tokens)):
        path = list[int]()
        while place:
            path.insert(0, tree.tokens[place])
            place = tree.parents[place]
        assert allows(path)


def test_request_end_token_ends_only_complete_documents(models: dict[str, Models], tokenizer: Tokenizer) -> None:
    """An end token is allowed only where the grammar accepts, even if other tokens may follow."""
    ends = frozenset(range(128, 250))
    grammar = Grammar.from_regex("(ab)+", tokenizer)
    for seed in range(20):
        state = write(models["float"], grammar, "sample", sampling=Sampling(20.0), seed=seed, end_tokens=ends)
        text = state.result().text
        assert re.fullmatch("(ab)+", text)
        assert state.tokens[-1] in ends and state.result().stopped == "eos"


def test_document_completed_by_the_last_token_stops_with_eos(models: dict[str, Models], tokenizer: Tokenizer) -> None:
    grammar = Grammar.from_regex("yes", tokenizer)
    assert write(models["float"], grammar, max_new_tokens=3).result().stopped == "eos"
    assert write(models["float"], grammar, max_new_tokens=2).result().stopped == "length"


@pytest.mark.parametrize("case", few(DOZEN, DOZEN[::8]), ids=lambda each: each["name"].replace(" ", "-"))
def test_trained_model_generates_valid_documents(case: dict[str, Any], trained_pair: tuple[Path, Path]) -> None:
    """Greedy and sampled; the rest of the schemas, and more documents, are in benchmarks/decoding/constrained.py."""
    small, large = trained_pair
    ways: list[dict[str, Any]] = [
        {},
        {"temperature": 1.5, "seed": 1},
        {"draft": small, "strategy": "speculative"},
        {"draft": small, "strategy": "speculative", "temperature": 1.5, "seed": 2},
        {"strategy": "ngram"},
    ]
    tokens = []
    for way in ways:
        with TextGenerator(large, schema=case["schema"], max_new_tokens=160, **way) as generator:
            result = generator.write(f"{case['name']}, as JSON:\n").whole()
        tokens.append(result.tokens)
        if result.stopped == "eos":  # else the model generated without end
            Draft202012Validator(case["schema"]).validate(json.loads(result.text))
        assert result.stopped in ("eos", "length", "capacity")
    assert tokens[2] == tokens[4] == tokens[0]


def test_command_line_accepts_schema_grammar_and_regex(
    intaglio: Callable[..., tuple[int, str, str]], trained_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "schema.json").write_text('{"enum": ["red", "blue"]}')
    (tmp_path / "grammar.lark").write_text('start: "<" /[a-f]{3}/ ">"')
    bundle = trained_pair[1]
    given = {"--schema": tmp_path / "schema.json", "--grammar": tmp_path / "grammar.lark", "--regex": "[0-9]{2}-x"}
    expected = {"--schema": '"(red|blue)"', "--grammar": "<[a-f]{3}>", "--regex": "[0-9]{2}-x"}
    for option, value in given.items():
        code, out, err = intaglio("generate", bundle, "A colour:", option, value, "--ignore-eos")
        assert code == 0 and re.fullmatch(expected[option], out.strip()), err
    code, _, err = intaglio("generate", bundle, "A", "--regex", "a", "--schema", tmp_path / "schema.json")
    assert code == 2 and "--schema and --regex are given, expected at most one" in err
    code, _, err = intaglio("generate", bundle, "A", "--schema", tmp_path / "none.json")
    assert code == 2 and "No such file" in err


def test_generator_accepts_one_grammar(trained_pair: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match=r"^--grammar and --regex are given, expected at most one"):
        TextGenerator(trained_pair[1], grammar='start: "a"', regex="a")
