#!/usr/bin/env bash
# The main job on a real, trained sentence encoder: export, compress to integers, validate, compile for two GPUs that
# need not be here, and compare a few sentences. Usage: examples/quickstart.sh DIRECTORY
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/session.sh" "$1"

step() {
  printf '\n$ intaglio'
  printf ' %q' "$@"
  printf '\n'
  intaglio "$@"
}

step export "$MINILM" -o minilm --force
step compress minilm -o minilm-int8 --recipe int8-only --calibration "$TEXT" --force
step validate minilm-int8 --against minilm
step compress minilm -o minilm-fp16 --recipe float16 --force
step build minilm-fp16 --target tensorrt-rtx --gpu t4 --gpu a100
step run minilm-int8 --similarity "A cat sits on the mat." "A kitten rests on a rug." "Stock markets fell on Monday."

cat <<END

Done: the bundles are in $PWD. Continue there with

  source examples/session.sh
  intaglio run minilm-int8 --similarity "How do I reset my password?" "I forgot my login."
  intaglio bench minilm-int8 --baseline minilm
  intaglio inspect minilm-int8
  intaglio --help

README.md continues with language models, speech, and serving.
END
