"""The folder of real files that `mutations` damages."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path

import numpy as np
import transformers
from drafts import save_drafts
from gguf_files import options, write_gguf
from lora_adapters import save_adapter
from mutations import QUANTISED
from quantized_checkpoints import save_quantized
from squeezed_files import file_of
from tiny_decoders import CHAT, save_decoder, write_byte_tokenizer
from tiny_encoder_decoders import save_encoder_decoder
from tiny_families import save_family
from tiny_speech import save_recogniser

from intaglio.bundle.bundle import Bundle
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.runtime import build
from intaglio.training.gradients.sensitivity import sensitivity


def write_material(folder: Path, encoder: Path, encoder_checkpoint: Path, int8: Path) -> None:
    """Everything that `SCENARIOS` names, made of small random models; those of the encoder are given."""
    checkpoints = {name: folder / f"{name}-checkpoint" for name in ("decoder", "llama", "both", "drafting", "encoder")}
    for name, family in (("decoder", "gpt2"), ("llama", "llama")):
        save_decoder(checkpoints[name], family)
        write_byte_tokenizer(checkpoints[name], CHAT)
    save_encoder_decoder(checkpoints["both"], "t5")
    save_drafts(checkpoints["decoder"], checkpoints["drafting"], "medusa", (0, 0))
    shutil.copytree(encoder_checkpoint, checkpoints["encoder"])
    for name in ("decoder", "both", "drafting", "llama"):
        export(str(checkpoints[name]), folder / name, check=False)
    shutil.copytree(encoder, folder / "encoder")
    shutil.copytree(int8, folder / "int8")
    write_variants(folder, encoder_checkpoint, CHAT)
    write_speech(folder)
    write_weights(folder)
    files = folder / "files"
    files.mkdir()
    (files / "text.txt").write_text("Some text, of a few words, and a line. It goes on, and on.\n" * 40)
    numbers = files / "numbers.sensitivity"
    sensitivity(folder / "decoder", numbers, files / "text.txt", samples=2)
    compress(folder / "decoder", folder / "packed", "lut-sparse", calibration=files / "text.txt", sensitivity=numbers)
    ids = np.arange(24, dtype=np.int64).reshape(3, 8) % 60
    np.savez(files / "arrays.npz", input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=np.zeros_like(ids))
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes?"}]
    (files / "messages.json").write_text(json.dumps(messages))
    prompts = [{"prompt": f"Text {number}", "reference": "goes on"} for number in range(3)]
    (files / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    (files / "recipe.yaml").write_text(
        "passes:\n  - fold_constants\n  - canonicalize\n  - rtn: {bits: 4, group_size: 32}\n"
        "  - float16: {keep: [Softmax]}\n"
    )


def write_variants(folder: Path, encoder_checkpoint: Path, template: str) -> None:
    """Bundles with files or fields that the others lack: a classifier, a template, an engine."""
    checkpoint = folder / "classifier-checkpoint"
    shutil.copytree(encoder_checkpoint, checkpoint, ignore=shutil.ignore_patterns("modules.json", "1_Pooling"))
    # Another test traces this one, too.
    config = transformers.AutoConfig.from_pretrained(checkpoint, num_hidden_layers=1, num_labels=3)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(checkpoint)
    export(str(checkpoint), folder / "classifier", check=False)
    Bundle.open(folder / "classifier").add_files({"config.json": b'{"pad_token_id": 0}'})
    shutil.copytree(folder / "decoder", folder / "templated")
    Bundle.open(folder / "templated").add_files({"chat_template.jinja": template.encode()})
    shutil.copytree(folder / "encoder", folder / "built")
    build(folder / "built", "ort-cpu")


def write_weights(folder: Path) -> None:
    """Checkpoints with quantised weights, files of llama.cpp and SqueezeLLM, and an adapter."""
    for method in QUANTISED:
        (folder / method).mkdir()
        save_quantized(folder / method, "llama", method)
    (folder / "gguf-file").mkdir()
    checkpoint = save_family(folder / "gguf-checkpoint", "qwen2", **options("qwen2"))
    write_gguf(checkpoint, folder / "gguf-file" / "model.gguf", "qwen2", {"ffn": "Q8_0", "attn": "Q4_1"})
    (folder / "squeezed").mkdir()
    file_of(folder / "squeezed", "llama", 3, 0.01, 1)
    save_adapter(folder / "llama-checkpoint", folder / "adapter")


def write_speech(folder: Path) -> None:
    """A recogniser as a checkpoint, as a NeMo archive, and as a container of hama."""
    save_recogniser(folder / "speech-checkpoint")
    files = folder / "speech-files"
    files.mkdir()
    archive = Path(__file__).parents[2] / "exporters" / "speech" / "nemo" / "squeezeformer.nemo"
    shutil.copy(archive, files / "recogniser.nemo")
    shutil.copy(str(resources.files("hama").joinpath("assets", "asr_waveform.hama")), files / "recogniser.hama")
