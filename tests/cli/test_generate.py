"""`intaglio generate`: sources of prompts, output streams, and interruption."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_decoders import VOCABULARY
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from intaglio.cli.printing.generated_text import show, show_passage
from intaglio.exporters import export
from intaglio.interrupts import Interrupted
from intaglio.runtime.generation.text.authors import Passage
from intaglio.runtime.generation.text.stream import TextStream
from intaglio.runtime.strategies.cost_model import StepTimes

Run = Callable[..., tuple[int, str, str]]
KEYS = {"text", "tokens", "tokens_per_second", "strategy", "calls", "accepted", "rolled_back"}


@pytest.fixture
def written(intaglio: Run, tiny_decoder: Path) -> Callable[..., list[dict[str, Any]]]:
    """Run `intaglio generate --json` on the tiny decoder; return its objects."""

    def run(*arguments: object, stdin: str = "") -> list[dict[str, Any]]:
        code, out, err = intaglio("generate", tiny_decoder, "-n", 8, "--json", *arguments, stdin=stdin)
        assert (code, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    return run


def test_each_prompt_prints_one_object(written: Callable[..., list[dict[str, Any]]]) -> None:
    first, second = written("one", "two")
    assert first.keys() >= KEYS
    assert first["calls"] == {"small": 0, "large": 8}
    assert len(first["tokens"]) == 8
    assert [first["tokens"]] == [each["tokens"] for each in written("one")]
    assert second["tokens"] == written("two")[0]["tokens"]
    assert (first["strategy"], first["stopped"]) == ("greedy", "length")


def test_argument_file_and_stdin_give_the_same_prompt(
    written: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text("two\nlines\n")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "two\\nlines"}\n')
    (expected,) = written("two\nlines")
    assert expected["prompt"] == "two\nlines"
    for found in (
        written("--file", tmp_path / "prompt.txt"),
        written(stdin="two\nlines\n"),
        written("--file", "-", stdin="two\nlines"),
        written("--data", tmp_path / "prompts.jsonl"),
    ):
        assert [each["tokens"] for each in found] == [expected["tokens"]]


def test_option_and_file_give_the_same_chat(written: Callable[..., list[dict[str, Any]]], tmp_path: Path) -> None:
    talk = [{"role": "system", "content": "Short."}, {"role": "user", "content": "Why?"}]
    (tmp_path / "talk.json").write_text(json.dumps(talk))
    (expected,) = written("<system>Short.<user>Why?>")
    assert written("--chat", "Why?", "--system", "Short.")[0]["tokens"] == expected["tokens"]
    assert written("--messages", tmp_path / "talk.json")[0]["tokens"] == expected["tokens"]
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Why?"}\n')
    (found,) = written("--data", tmp_path / "prompts.jsonl", "--system", "Short.")
    assert (found["prompt"], found["tokens"]) == (expected["prompt"], expected["tokens"])


def test_stdout_has_the_text_and_stderr_the_throughput(
    intaglio: Run, tiny_decoder: Path, written: Callable[..., list[dict[str, Any]]]
) -> None:
    options = ("--temperature", 0.7, "--top-k", 20, "--min-p", 0.01, "--seed", 5)
    code, out, err = intaglio("generate", tiny_decoder, "one", "two", "-n", 8, *options)
    assert code == 0
    first, second = written("one", "two", *options)
    assert first["strategy"] == "sample"
    assert out == f"{first['text']}\n\n{second['text']}\n"
    assert len(err.splitlines()) == 2
    assert err.startswith("8 tokens, ")


def test_statistics_follow_all_texts(intaglio: Run, tiny_decoder: Path) -> None:
    arguments = ("generate", tiny_decoder, "abcabcabc", "two", "-n", 8, "--strategy", "ngram", "--work")
    code, out, _ = intaglio(*arguments)
    assert code == 0
    run, alone, ratio = (line.split() for line in out.splitlines()[-4:-1])
    assert (run[:2], alone[:3], ratio[0]) == (["this", "run"], ["the", "model", "alone"], "ratio")
    code, out, err = intaglio(*arguments, "--json")
    first, second, work = (json.loads(line) for line in out.splitlines())
    assert (code, err) == (0, "") and first.keys() == second.keys() >= KEYS
    assert work["run"]["operations"] >= work["alone"]["operations"] > 0
    assert work["run"]["bytes"] <= work["alone"]["bytes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x" * 64], "prompt of 64 tokens: the model takes at most 64"),
        ([""], "the prompt is empty"),
        ([], "the prompt is empty"),
        (["a", "--file", "b"], "given both as arguments and with --file"),
        (["--data", "/no/file", "--file", "b"], "given both with --file and with --data"),
        (["--data", "/no/file"], "--data /no/file: No such file"),
        (["--messages", "b", "--chat"], "leave out --chat"),
        (["--messages", "/no/file"], "--messages /no/file: No such file"),
        (["--file", "/no/file"], "--file /no/file: No such file"),
        (["a", "--temperature", "-1"], "temperature -1.0: expected 0 or more"),
        (["a", "--top-p", "7"], "top-p 7.0: expected 0 to 1"),
        (["a", "--strategy", "greedy", "--seed", "1", "--top-k", "3"], "leave out --top-k"),
        (["a", "--strategy", "luck"], "'luck': expected one of greedy, sample"),
        (["a", "--strategy", "greedy", "--draft", "b"], "takes no --draft"),
        (["a", "--stop", ""], "a stop string is empty"),
        (["a", "-n", "0"], "max new tokens 0"),
        (["a", "--threads", "0"], "Invalid value for '--threads'"),
        (["a", "--target", "abacus"], "'abacus': expected one of ort-cpu"),
    ],
)
def test_usage_error_prints_one_line_and_exits_with_code_2(
    arguments: list[str], message: str, intaglio: Run, tiny_decoder: Path
) -> None:
    code, out, err = intaglio("generate", tiny_decoder, *arguments)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("intaglio: ")
    assert message in line


@pytest.mark.parametrize(("terminal", "shown"), [(True, "a\ufffd[31m\n\t\ufffdé"), (False, "a\x1b[31m\n\t\x9bé")])
def test_generated_text_cannot_control_the_terminal(
    terminal: bool, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    show("a\x1b[31m\n\t\x9bé")
    assert capsys.readouterr().out == shown


def test_ctrl_c_keeps_the_partial_text(endless_decoder: Path) -> None:
    program = [sys.executable, "-P", "-m", "intaglio", "generate", str(endless_decoder), "one", "two"]
    options = ["-n", "10000000", "--ignore-eos", "--temperature", "1"]
    process = subprocess.Popen([*program, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (first + out).endswith(b"\n")
    assert err.endswith(b"Interrupted.\n")
    assert err.count(b"\n") == 1


def test_ctrl_c_prints_a_complete_object(intaglio: Run, tiny_decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[int] = []
    push = TextStream.push

    def interrupted(stream: TextStream, token: int) -> str:
        pushed.append(token)
        if len(pushed) == 5:
            raise Interrupted
        return push(stream, token)

    monkeypatch.setattr(TextStream, "push", interrupted)
    code, out, err = intaglio("generate", tiny_decoder, "one", "two", "--json")
    assert (code, err) == (128 + signal.SIGINT, "")
    (result,) = [json.loads(line) for line in out.splitlines()]
    assert (result["stopped"], result["tokens"]) == ("interrupted", pushed)


@pytest.fixture(scope="session")
def endless_decoder(make_decoder: Callable[..., tuple[Path, Path]]) -> Path:
    """A decoder whose text would take hours."""
    return make_decoder("llama", max_position_embeddings=10_000_000)[1]


PROMPTS = ("Return the number of", "The value is", "If the list is")


@pytest.mark.parametrize("strategy", ["bild", "speculative"])
@pytest.mark.parametrize("batch", [1, 2])
def test_trace_in_a_pipe_is_a_word_diff(
    strategy: str, batch: int, intaglio: Run, trained_pair: tuple[Path, Path]
) -> None:
    draft, target = trained_pair
    thresholds = ("--fallback", 0.2, "--rollback", 0.5) if strategy == "bild" else ()
    options = ("--strategy", strategy, *thresholds, "--draft", draft, "-n", 25, "--batch", batch, "--stop", " of ")
    code, out, err = intaglio("generate", target, *PROMPTS, *options, "--json")
    assert (code, err) == (0, "")
    results = [json.loads(line) for line in out.splitlines()]
    code, out, err = intaglio("generate", target, *PROMPTS, *options, "--trace")
    assert code == 0
    assert "[-" in out and "{+" in out
    kept = re.sub(r"\{\+(.*?)\+\}", r"\1", re.sub(r"\[-.*?-\]", "", out, flags=re.DOTALL), flags=re.DOTALL)
    assert kept == "\n\n".join(result["text"] for result in results) + "\n"
    told = [line for line in err.splitlines() if "draft tokens accepted" in line]
    for line, result in zip(told, results, strict=True):
        drafted = result["accepted"] + result["rolled_back"]
        assert f"{result['accepted']} of {drafted} draft tokens accepted." in line
        assert f"{result['calls']['small']} calls of the small model" in line


def test_json_names_the_source_of_each_token(intaglio: Run, trained_pair: tuple[Path, Path]) -> None:
    options = ("--strategy", "bild", "--draft", trained_pair[0], "--fallback", 0.2, "--rollback", 1, "-n", 25)
    code, out, _ = intaglio("generate", trained_pair[1], PROMPTS[0], *options, "--json", "--trace")
    assert code == 0
    result = json.loads(out)
    assert [token for token, _, rolled_back in result["trace"] if not rolled_back] == result["tokens"]
    assert {by for _, by, rolled_back in result["trace"] if rolled_back} == {"small"}
    assert result.keys() >= {"calls", "processed", "seconds_in", "accepted", "rolled_back", "acceptance", "stopped"}


def test_batch_prints_complete_texts_in_order(intaglio: Run, trained_pair: tuple[Path, Path]) -> None:
    shown = [
        intaglio("generate", trained_pair[1], *PROMPTS, "-n", 12, "--strategy", "ngram", "--batch", batch)[1]
        for batch in (1, 2, 5)
    ]
    assert shown[0] == shown[1] == shown[2]
    assert shown[0].count("\n\n") >= 2


@pytest.mark.parametrize(
    ("passage", "shown"),
    [
        (Passage("a\x1b\n", "small", False), "\x1b[32ma\ufffd\n\x1b[0m"),
        (Passage("b", "large", False), "\x1b[34mb\x1b[0m"),
        (Passage("c", "small", True), "\x1b[32m\x1b[2m\x1b[9mc\x1b[0m"),
    ],
)
def test_terminal_shows_colours(
    passage: Passage, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    show_passage(passage)
    assert capsys.readouterr().out == shown
    monkeypatch.setenv("NO_COLOR", "1")
    show_passage(passage)
    assert "\x1b[" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategy", "bild"], "needs a draft model: add --draft BUNDLE"),
        (["--fallback", "0.5"], "strategy 'greedy' takes no --fallback"),
        (["--strategy", "bild", "--draft", "SELF", "--rollback", "nan"], "rollback nan: expected 0 or more nats"),
        (["--strategy", "bild", "--draft", "SELF", "--max-draft", "99"], "max draft 99: expected less than the 64"),
        (["--strategy", "ngram", "--window", "0"], "window 0: expected 1 to 1024"),
        (["--strategy", "speculative", "--draft", "OTHER"], "its vocabulary is not that of"),
        (["--strategy", "calm", "--work"], "--work counts whole passes"),
        (["--batch", "0"], "Invalid value for '--batch'"),
    ],
)
def test_invalid_strategy_prints_one_line_and_exits_with_code_2(
    arguments: list[str], message: str, intaglio: Run, tiny_decoder: Path, trained_pair: tuple[Path, Path]
) -> None:
    paths: dict[str, object] = {"SELF": tiny_decoder, "OTHER": trained_pair[0]}
    code, out, err = intaglio("generate", tiny_decoder, "a", *(paths.get(each, each) for each in arguments))
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("intaglio: ")
    assert message in line


def test_encoder_cannot_generate(intaglio: Run, tiny_bundle: Path) -> None:
    code, out, err = intaglio("generate", tiny_bundle, "Hello")
    assert (code, out) == (2, "")
    assert "its task is 'embed', not 'generate'" in err


def test_invalid_prompt_is_named_before_any_text_is_printed(intaglio: Run, trained_pair: tuple[Path, Path]) -> None:
    code, out, err = intaglio("generate", trained_pair[1], "Hello", "", "-n", 4)
    assert (code, out) == (2, "")
    assert err.strip().endswith("prompt 2 of 2: the prompt is empty, expected at least one token. Add text to it.")


def test_trace_of_an_encoder_decoder_is_its_text(
    intaglio: Run, make_encoder_decoder: Callable[..., Any], tmp_path: Path
) -> None:
    """Decoding words with leading spaces depends on the preceding token, which is not the source."""
    checkpoint = Path(shutil.copytree(make_encoder_decoder("t5")[0], tmp_path / "words"))
    words = Tokenizer(models.WordLevel({f"▁{number}": number for number in range(VOCABULARY)}, "▁0"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    words.save(str(checkpoint / "tokenizer.json"))
    bundle = tmp_path / "bundle"
    export(str(checkpoint), bundle, check=False)
    options = ["-n", 6, "--ignore-eos", "--temperature", 1000, "--seed", 3]
    command = ["generate", bundle, " ".join(map(str, range(20))), *options]
    plain, traced = (intaglio(*command, *more)[1].strip("\n") for more in ([], ["--trace"]))
    assert traced == "{+" + plain + "+}"
    assert len(plain.split()) == 6


@pytest.mark.parametrize(
    ("options", "message", "absent"),
    [
        (["--strategy", "ngram"], "calls of the model (", "small"),
        (["--strategy", "ngram"], "draft tokens accepted, copied from the text so far.", "small"),
        (["--draft", "SMALL", "--strategy", "speculative"], "calls of the small model (", "copied"),
    ],
)
def test_forward_passes_of_a_draft_model_are_reported_if_there_is_one(
    options: list[str], message: str, absent: str, intaglio: Run, trained_pair: tuple[Path, Path]
) -> None:
    draft, target = trained_pair
    prompt = "return a\nreturn b\nreturn c\nreturn"
    given = [str(draft) if each == "SMALL" else each for each in options]
    code, _, err = intaglio("generate", target, prompt, "-n", 30, "--ignore-eos", *given)
    assert code == 0
    assert message in err and absent not in err


@pytest.mark.parametrize(
    ("options", "draft_step", "message"),
    [
        ([], 0.1, "Drafting can be up to 3.1 times as fast"),
        (["--temperature", "0.8", "--seed", "1"], 1.5, "Drafting is off"),
    ],
)
def test_draft_length_defaults_to_auto(
    options: list[str],
    draft_step: float,
    message: str,
    intaglio: Run,
    trained_pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = StepTimes(draft_step, (1.0, 1.05, 1.1, 1.15, 1.2))  # measured ones depend on what else the machine does
    monkeypatch.setattr(StepTimes, "measure", lambda target, draft: times)
    draft, target = trained_pair
    code, out, err = intaglio("generate", target, PROMPTS[0], "--draft", draft, "-n", 12, "--json", *options)
    assert code == 0
    assert json.loads(out)["strategy"] == "auto"
    assert err.startswith(message)
