"""The verbs as functions of `intaglio`: imported on first use, with the options of the command line."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import intaglio
from intaglio import deploy, errors, training
from intaglio.accuracy.default_bounds import given_bounds
from intaglio.cli import VERBS, cli
from intaglio.runtime.agents.answer import AgentOptions, open_agent
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.generator_options import GeneratorOptions, StrategyOptions, WritingOptions
from intaglio.runtime.speech.recognizer import speech_options
from intaglio.runtime.strategies import STRATEGIES
from intaglio.runtime.strategies.options import options_by_name
from intaglio.serve.options import ServerOptions
from intaglio.targets import summary
from intaglio.training.speech.training_options import SpeechTraining
from intaglio.validation.bench.bench import NOT_TAKEN
from intaglio.validation.options import ValidationOptions
from intaglio.validation.score import score
from intaglio.validation.validate_bundle import compare_outputs

REQUIRED = inspect.Parameter.empty

# Commands without a function, and why.
NO_FUNCTION = {
    "chat": "intaglio.runtime.generation.conversation.Conversation",
    "completion": "a script for shells",
    "serve": "intaglio.serve.server.serve, which returns when the server has ended",
    "serve-tools": "intaglio.runtime.agents.tools.mcp_server.serve_tools, likewise",
}
# Options without a function parameter, and their replacement in Python.
COMMAND_LINE_ONLY = {
    "* --json": "the result is a struct",
    "* --quiet": "functions print nothing",
    "* --verbose": "intaglio.display.verbosity",
    "agent --force": "it guards --timeline and --trace",
    "agent --latency": "the result has it",
    "agent --timeline": "intaglio.runtime.agents.reports.timeline.timeline",
    "agent --trace": "intaglio.runtime.agents.reports.trace.trace_bytes",
    "inspect --hashes": "the result has them",
    "run --input": "texts are given",
    "run --stream": "intaglio.runtime.speech.recognizer.SpeechRecognizer.stream",
    "run --similarity": "intaglio.runtime.text.similarities.similarity",
    "bench --force": "it guards --plot",
    "bench --plot": "intaglio.validation.bench.picture.picture",
    "roofline --force": "it guards --picture",
    "tune-decoding --force": "it guards --picture",
    "roofline --picture": "intaglio.validation.roofline.picture.picture",
    "tune-decoding --picture": "intaglio.validation.tuning.picture.picture",
    "tune-decoding --early-exit": "draft=None",
    "train speech --utterances": "refused: the corpus has them",
    "train speech --held-out": "refused: the corpus has them",
    "train speech --corpora": "refused: the corpus is given",
    "train speech --recordings": "refused: the corpus has them",
    "generate --file": "prompts are given",
    "generate --data": "prompts are given",
    "generate --chat": "a prompt may be a list of messages",
    "generate --system": "a prompt may be a list of messages",
    "generate --messages": "a prompt may be a list of messages",
    "generate --trace": "the result has it",
    "generate --work": "intaglio.validation.roofline.decoding_work.compared_work",
    "generate --beams": "intaglio.beam_search",
    "generate --length-penalty": "intaglio.BeamOptions",
    "generate --no-repeat-ngram": "intaglio.BeamOptions",
    "generate --min-new-tokens": "intaglio.BeamOptions",
    "generate --early-stopping": "intaglio.BeamOptions",
}
# The functions that receive the options.
PASSED_TO: Mapping[str, Callable[..., Any]] = {
    "generate": TextGenerator,
    "bench": TextGenerator,
    "agent": open_agent,
    "train speech": SpeechTraining,
}
NOT_OF_RAY = ("api_keys", "send_timeout", "max_audio_seconds")  # a file of its own; Ray's; no recordings
# Parameters required in Python but not on the command line, which has another way.
ANOTHER_WAY = {"run texts", "generate prompts", "train speech corpus", "tune-decoding draft"}


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli)
    for name in VERBS:
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", each) for below, each in command.commands.items())
        elif name not in NO_FUNCTION:
            yield name, command


def function_of(name: str) -> Callable[..., Any]:
    verb, _, method = name.replace("-", "_").partition(" ")
    if not method:
        return getattr(intaglio, verb)  # type: ignore[no-any-return]
    known = vars({"train": training, "deploy": deploy}[verb])
    return known.get(f"{verb}_{method}") or known[method]  # type: ignore[no-any-return]


def parameters_of(name: str) -> Mapping[str, Any]:
    """Name -> default of the function's parameters; some are passed on."""
    own = {key: each.default for key, each in inspect.signature(function_of(name)).parameters.items()}
    if name == "validate":
        del own["options"]
        return own | {each.name: each.default for each in validation_parameters()} | {"perplexity": None, "wer": None}
    if name == "deploy ray":
        del own["options"]
        return own | {each.name: each.default for each in fields(ServerOptions) if each.name not in NOT_OF_RAY}
    if name not in PASSED_TO:
        return own
    options = {key: each.default for key, each in inspect.signature(PASSED_TO[name]).parameters.items()}
    left_out = NOT_TAKEN if name == "bench" else ("scheduling",)  # limits of a queue, for servers only
    options = {key: each for key, each in options.items() if key not in left_out}
    passed = ("options", "strategy_options", "report")
    strategies = () if name == "train speech" else options_by_name(STRATEGIES)
    return {key: each for key, each in (options | own).items() if key not in passed} | dict.fromkeys(strategies)


def validation_parameters() -> list[inspect.Parameter]:
    """The options that `validate` passes on to the functions of each kind of comparison, as parameters of these."""
    keyword_only = [
        each
        for function in (compare_outputs, score)
        for each in inspect.signature(function).parameters.values()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    others = [
        each for function in (given_bounds, speech_options) for each in inspect.signature(function).parameters.values()
    ]
    return keyword_only + [each for each in others if each.name != "max_seconds"]


def python_name(parameter: click.Parameter, known: Mapping[str, Any]) -> str:
    """The expected Python name of a parameter: that of its option, or the plural if it is repeatable."""
    option = max(parameter.opts, key=len).lstrip("-").replace("-", "_")
    return {"axis": "axes"}.get(option, option if option in known else f"{option}s")


def default_of(parameter: click.Parameter, command: click.Command) -> object:
    if parameter.required:
        return REQUIRED
    default = parameter.get_default(click.Context(command))
    if default is None or not isinstance(default, bool | int | float | str | tuple):  # click's sign for none
        return None
    return default


CASES = [
    pytest.param(name, command, parameter, id=f"{name} {max(parameter.opts, key=len)}")
    for name, command in commands()
    for parameter in command.params
    if not {f"* {max(parameter.opts, key=len)}", f"{name} {max(parameter.opts, key=len)}"} & set(COMMAND_LINE_ONLY)
]


@pytest.mark.parametrize(("name", "command", "parameter"), CASES)
def test_option_has_the_same_name_and_default_in_python(
    name: str, command: click.Command, parameter: click.Parameter
) -> None:
    known = parameters_of(name)
    key = python_name(parameter, known)
    assert key in known, f"the function lacks {key}; it has {', '.join(known)}"
    ours, theirs = known[key], default_of(parameter, command)
    if f"{name} {key}" in ANOTHER_WAY:
        assert (ours, theirs) == (REQUIRED, None)
    elif theirs is None and ours not in (None, ()):  # the value that the function uses, by the help
        shown = ", ".join(f"{each:g}" for each in ours)
        assert f"[default: {shown}]" in str(getattr(parameter, "help", None))
    else:
        assert (ours or None) == (theirs or None)


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_function_has_no_option_that_its_command_lacks(name: str) -> None:
    command = dict(commands())[name]
    known = parameters_of(name)
    assert set(known) == {python_name(each, known) for each in command.params} & set(known)


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Keyword parameter -> its annotation, as text."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.annotation for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}


def as_texts(options: type) -> dict[str, str]:
    return {name: each.__forward_arg__ for name, each in options.__annotations__.items()}


def test_types_of_passed_options_equal_the_signatures() -> None:
    strategies = as_texts(StrategyOptions)
    assert strategies.keys() == options_by_name(STRATEGIES).keys()
    for name, found in options_by_name(STRATEGIES).items():
        assert {f"{each.kind.__name__} | None" for each in found.values()} == {strategies[name]}
    assert as_texts(GeneratorOptions) == annotations_of(TextGenerator) | strategies
    assert as_texts(AgentOptions) == annotations_of(open_agent) | strategies
    assert as_texts(GeneratorOptions).keys() - as_texts(WritingOptions).keys() == set(NOT_TAKEN) - {"bundle", "options"}


def test_types_of_validation_options_equal_the_signatures() -> None:
    expected = {each.name: each.annotation for each in validation_parameters()}
    types = {name: each.__forward_arg__ for name, each in ValidationOptions.__annotations__.items()}
    assert types == expected | dict.fromkeys(["perplexity", "wer"], "str | Path | None")


def test_unknown_validation_option_raises() -> None:
    with pytest.raises(TypeError, match=r"validate.. has no option sample$"):
        intaglio.validate("bundle", sample=3)  # type: ignore[call-arg]


def test_every_option_for_a_target_lists_the_targets() -> None:
    context = click.Context(cli)
    listed = [command for verb in NO_FUNCTION if (command := cli.get_command(context, verb))] + [
        *dict(commands()).values()
    ]
    helps = [str(getattr(each, "help", None)) for command in listed for each in command.params if each.name == "target"]
    assert len(helps) >= 8 and all(summary() in each for each in helps)


def test_every_exception_is_an_existing_option() -> None:
    existing = {f"{name} {max(each.opts, key=len)}" for name, command in commands() for each in command.params}
    assert {excuse for excuse in COMMAND_LINE_ONLY if not excuse.startswith("*")} <= existing


def test_static_names_equal_runtime_names() -> None:
    tree = ast.parse(Path(intaglio.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(guarded.test) == "TYPE_CHECKING"
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    listed = {alias.name: str(node.module) for node in imports for alias in node.names}
    assert listed == intaglio._MODULES
    assert set(listed) == set(intaglio.__all__) - {"__version__"}
    assert set(listed) <= set(dir(intaglio))
    for name, module in listed.items():
        found = getattr(sys.modules.get(module) or __import__(module, fromlist=[name]), name)
        assert getattr(intaglio, name) is found


def test_every_verb_and_every_error_is_exported() -> None:
    functions = {name.replace("-", "_") for name in VERBS.keys() - NO_FUNCTION - {"train", "deploy"}}
    assert functions <= set(intaglio.__all__)
    assert all(callable(getattr(intaglio, name)) for name in functions)
    defined = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)}
    assert defined <= set(intaglio.__all__)


def test_unknown_attribute_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'intaglio' has no attribute 'compres'"):
        intaglio.compres  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_loads_no_stage_and_no_numpy() -> None:
    code = "import sys; before = set(sys.modules); import intaglio; print(sorted(set(sys.modules) - before))"
    environment = {"PYTHONPATH": str(Path(__file__).parent.parent.parent)}  # -S disables editable installations
    command = [sys.executable, "-P", "-S", "-c", code]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    loaded = ast.literal_eval(found.stdout)
    expected = ["intaglio", "intaglio.lazy_names", "intaglio.version"]
    assert [name for name in loaded if name.startswith("intaglio")] == expected
    assert not {"numpy", "msgspec", "typing", "importlib.metadata"} & set(loaded)


def test_verbs_work_as_package_functions(tiny_bundle_copy: Path, tmp_path: Path) -> None:
    assert intaglio.inspect(tiny_bundle_copy).operators["Gelu"] == 2
    assert intaglio.compress(tiny_bundle_copy, tmp_path / "half", "float16").recipe == "float16"
    assert intaglio.validate(tmp_path / "half", against=tiny_bundle_copy, samples=2).passed
    (result,) = intaglio.run(tiny_bundle_copy, ["a sentence"])
    assert result.embedding is not None and np.linalg.norm(result.embedding) == pytest.approx(1, abs=1e-5)


def test_package_function_generates_texts(tiny_decoder: Path) -> None:
    first, second = intaglio.generate(tiny_decoder, ["one", "two"], max_new_tokens=3, seed=1, temperature=0.5)
    assert (first.prompt, second.prompt) == ("one", "two")
    assert first.strategy == "sample"
    assert 1 <= len(first.tokens) <= 3


def test_compress_computes_sensitivities_as_the_command_does(
    language_models: Path, trained_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "text").write_text((language_models / "calibration.txt").read_text()[:3000])
    small = trained_pair[0]
    result = intaglio.compress(small, tmp_path / "out", "lut", calibration=tmp_path / "text")
    assert result.bytes_after < result.bytes_before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text"]
