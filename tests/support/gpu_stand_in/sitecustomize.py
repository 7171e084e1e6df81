"""Python with this folder on its path has a GPU: `cuda.bindings.driver` is the stand-in beside this file.

GPU_FAULT is a fault, a colon and the name of the kernel that has it.
"""

import os
import sys

import gpu_stand_in

sys.modules["cuda.bindings.driver"] = gpu_stand_in.Driver(*os.environ.get("GPU_FAULT", ":").split(":"))
