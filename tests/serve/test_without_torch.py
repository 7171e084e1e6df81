"""A machine that only serves bundles needs none of the libraries that export them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from served import served

EXPORTING = ("torch", "transformers", "onnxscript", "huggingface_hub", "safetensors")


def test_serving_needs_no_export_libraries(
    chat_models: tuple[Path, Path], tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["import sys", *(f"sys.modules[{name!r}] = None" for name in EXPORTING)]
    (tmp_path / "sitecustomize.py").write_text("\n".join(lines))
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    for name in EXPORTING:
        missing = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True, check=False)
        assert "ModuleNotFoundError" in missing.stderr
    with served(f"lm={chat_models[1]}", f"encoder={tiny_bundle}", "--rows", 1) as running:
        body = {"model": "lm", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "ignore_eos": True}
        status, found = running.post("/v1/chat/completions", body)
        assert (status, found["usage"]["completion_tokens"]) == (200, 3)
        assert running.post("/v1/embeddings", {"model": "encoder", "input": "a"})[0] == 200
        assert running.stop() == 0
