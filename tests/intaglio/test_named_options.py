"""Options and verbs named in messages exist, in the named verb or in the verbs whose users see the message."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from intaglio.cli import VERBS, cli

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("exporters", "training", "graph_passes", "plugins", "runtime", "serve", "deploy", "validation", "intaglio")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*(?![\w-])")
NAMING = re.compile(r"--[a-z]|^(?!from |import ).*\bintaglio\b(?!\.)", re.MULTILINE)
COMMAND = re.compile(r"intaglio ((?:train |deploy )?[a-z-]+)((?: (?!intaglio)[^ ]+)*)")
# Options of other programs: pip, hf, ray, trtexec, compilers, espeak, curl, compute-sanitizer; CSS variables of plots.
FOREIGN = (
    "exporters/checkpoints/adapters.py --local-dir",
    "runtime/adapters/folder.py --local-dir",
    "deploy/tensorrt/script.py",
    "plugins/cuda/compiler.py",
    "plugins/ort/build.py",
    "plugins/trt/registration.py --upgrade",
    "runtime/engines/onnxruntime/custom_operators.py",
    "intaglio/bundle/manifest_reading.py --upgrade",
    "intaglio/executors/ray_cluster.py --head",
    "intaglio/display/charts.py",
    "validation/doctor --force-reinstall",
    "validation/doctor --no-deps",
    "validation/gpu_check/sanitizer.py",
    "validation/polygraphy_extension.py --intaglio-target",
)
# The verbs whose users see the messages of a file or folder, or of one of its options if it is named. The longest
# matching entry applies, and every verb in it must have the option.
SEEN_BY = {
    "exporters": "export",
    "exporters/checkpoints/hub.py --against": "validate",
    "exporters/checkpoints/quantized/methods.py --calibration": "compress",
    "exporters/convert_checkpoint.py": "convert",
    "exporters/squeezellm_file.py": "convert",
    "exporters/source.py": "validate",
    "plugins/trt/loading.py": "build",
    "training": "train",
    "training/gradients/sensitivity.py": "sensitivity",
    "training/language_models/train_drafts.py": "train medusa, train hidden-transfer",
    "training/language_models/train_early_exit.py": "train early-exit",
    "training/integer/train_int8_only.py": "train int8-only",
    "training/language_models/pruning.py": "train prune",
    "training/language_models/alignment.py": "train align",
    "training/integer/network.py --allow-float": "compress",
    "graph_passes": "compress",
    "graph_passes/float16.py --dtype": "export",
    "intaglio/compression.py": "compress",
    "intaglio/executors": "compress sensitivity tune-decoding validate",
    "intaglio/files/atomic.py": "export compress build",
    "intaglio/sensitivity_file.py": "compress",
    "intaglio/processes/threads.py": "run generate serve",
    "intaglio/storage": "export compress",
    "plugins/group_matmul/launch.py": "export",
    "runtime/adapters": "export generate chat serve bench",
    "runtime/agents": "agent",
    "runtime/engines": "build run generate serve validate bench",
    "intaglio/bundle/manifest_reading.py --force": "build",
    "runtime/engines/build.py --no-plugins": "build",
    "runtime/engines/build.py --workspace": "build",
    "runtime/engines/build.py --hardware-compatibility": "build",
    "runtime/engines/build.py --optimization-level": "build",
    "runtime/engines/build.py --cache-bits": "build",
    "runtime/engines/build_request.py": "build",
    "runtime/engines/opening.py --adapter": "generate chat serve bench",
    "runtime/engines/opening.py --cache-bits": "generate chat serve agent bench validate",
    "runtime/engines/onnxruntime/cache_bits.py": "generate chat serve agent bench validate, deploy ray, deploy triton",
    "runtime/engines/caches/engine_caches.py": "build generate chat serve agent bench validate",
    "runtime/engines/caches/engine_caches.py --force": "build",
    "runtime/engines/caches/quantized_cache.py": "build generate chat serve agent bench validate",
    "runtime/engines/onnxruntime/session_operators.py": "generate chat serve agent bench validate",
    "runtime/engines/gpus.py --gpu": "build",
    "runtime/engines/tensorrt/builder.py": "build",
    "runtime/engines/tensorrt/plan_options.py": "build",
    "runtime/engines/tensorrt/refit.py --force": "build",
    "runtime/engines/tensorrt/refusals.py": "build",
    "runtime/engines/tensorrt/engine.py --force": "build",
    "runtime/engines/tensorrt/engine.py --gpu": "build",
    "runtime/generation/generate.py": "generate serve bench",
    "runtime/generation/requests/image_prompts.py": "generate",
    "runtime/generation/requests/strategy_choice.py": "generate serve bench",
    "runtime/sampling/grammar.py": "generate",
    "runtime/text/embedding_prompts.py": "run serve",
    "runtime/sessions/early_exit.py": "generate serve",
    "runtime/sessions/encoder_decoder.py": "generate serve",
    "runtime/text/inputs.py": "validate",
    "runtime/text/token_inputs.py": "validate",
    "runtime/modalities": "validate",
    "runtime/modalities/modality.py": "run",
    "runtime/modalities/modality.py --data": "validate",
    "runtime/text/dimensions.py": "run",
    "runtime/text/run_texts.py": "run",
    "runtime/text/similarities.py": "run",
    "runtime/text/span_options.py": "run",
    "runtime/text/span_runner.py": "run",
    "runtime/speech/recognizer.py": "run serve",
    "runtime/speech/recognizer.py --features": "export",
    "runtime/speech/audio_file.py": "run",
    "runtime/speech/recordings": "run",
    "serve": "serve",
    "deploy/ray": "deploy ray",
    "deploy/triton": "deploy triton",
    "validation": "validate",
    "validation/bench": "bench",
    "validation/gpu_check": "gpu-check",
    "validation/tuning/tune_decoding.py": "generate",
    "validation/tuning/tune_decoding.py --data": "tune-decoding",
}


@cache
def texts(path: Path) -> tuple[str, ...]:
    return tuple(_texts(path))


def _texts(path: Path) -> Iterator[str]:
    """The strings of a file without docstrings; of an f-string, its constant parts joined by {}.

    Most files cannot name an option or a verb, and are not parsed.
    """
    source = path.read_text()
    if not NAMING.search(source):
        return
    tree = ast.parse(source)
    left_out = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            left_out.add(id(body[0].value))
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(value) for value in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value


@cache
def options(verb: str) -> frozenset[str]:
    """The options of a verb; of a group, those of its verbs."""
    command: click.Command = cli
    for name in verb.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"no verb {verb}"
        command = found
    if isinstance(command, click.Group):
        names = command.list_commands(click.Context(command))
        return frozenset().union(*(options(f"{verb} {name}") for name in names))
    declared = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
    return frozenset({*declared, "--help"})


def is_verb(name: str) -> bool:
    return name.split()[0] in VERBS


def files() -> list[str]:
    found = [path.relative_to(ROOT) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [str(path) for path in found]


def verbs_that_show(path: str, option: str) -> list[str]:
    parts = path.split("/")
    places = [path, *("/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))]
    for place in places:
        for key in (f"{place} {option}", place):
            if key in FOREIGN:
                return []
            if key in SEEN_BY:
                return re.findall(r"(?:train|deploy) [a-z0-9-]+|[a-z-]+", SEEN_BY[key])
    pytest.fail(f"{path} names {option}: who sees it? Add the file to SEEN_BY.")


def wrong_options(path: str) -> list[str]:
    """Missing options and verbs that the messages of a file name."""
    wrong = []
    for text in texts(ROOT / path):
        rest = text
        for command in COMMAND.finditer(text):
            verb = command[1] if is_verb(command[1]) else command[1].split()[0]
            if not is_verb(verb):
                continue
            shown = re.split(r"\)|\. |, ", command[2])[0]
            wrong += [f"intaglio {verb} {option}" for option in OPTION.findall(shown) if option not in options(verb)]
            rest = rest.replace(shown, "")
        for option in OPTION.findall(rest):
            wrong += [f"{verb} {option}" for verb in verbs_that_show(path, option) if option not in options(verb)]
    return wrong


def test_options_named_in_messages_exist() -> None:
    found = {path: wrong for path in files() if (wrong := wrong_options(path))}
    assert found == {}


def test_options_named_by_the_command_line_exist() -> None:
    every = frozenset().union(*(options(verb) for verb in VERBS)) | {"--version"}
    foreign = {"--upgrade"}
    for path in sorted((ROOT / "cli").rglob("*.py")):
        named = {option for text in texts(path) for option in OPTION.findall(text)}
        assert named - every - foreign == set(), path
        verb = path.stem.replace("_", "-")
        if verb in VERBS:
            missing = {option for option in named - foreign if option not in options(verb)}
            unexplained = {
                (verb, option) for option in missing if not any(_names_verb(text, option) for text in texts(path))
            }
            assert unexplained - {("validate", "--recipe")} == set(), (
                path
            )  # a column of a table, beside names of recipes


def _names_verb(text: str, option: str) -> bool:
    """Whether a text names an option together with a verb that has it."""
    return option in text and any(option in options(verb) for verb in VERBS if re.search(rf"\b{verb}\b", text))


def test_commands_named_in_messages_exist() -> None:
    wrong = set()
    for path in files():
        for text in texts(ROOT / path):
            for name in re.findall(r"(?:with: |`)intaglio ([a-z-]+)", text):
                if name not in VERBS:
                    wrong.add((path, name))
    assert wrong == set()


def test_too_long_text_names_no_option_of_another_verb() -> None:
    from intaglio.runtime.text.tokenizer import Tokenizer

    assert not any(OPTION.search(text) for text in texts(ROOT / "runtime" / "text" / "tokenizer.py"))
    assert Tokenizer.check_length.__doc__
