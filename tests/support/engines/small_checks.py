"""`gpu-check` in small cases."""

from pathlib import Path

import msgspec

from intaglio.plugins.kernel_check.inputs import Sizes

SUPPORT = Path(__file__).parents[1]
SMALL = Sizes(rows=(0, 1, 17), few_rows=(1, 17), width=48, inner=40, depth=128, channels=24, hidden=64, vocabulary=200)
SMALL_ENGINES = msgspec.structs.replace(SMALL, rows=(1, 17))
