"""Python with this folder on its path has a GPU: `cuda.bindings.driver` is the stand-in beside this file.

GPU_FAULT is a fault, a colon and the name of the kernel that has it. ONNX Runtime has a CUDA provider, on
`emulated_driver`, unless the fault is "no provider", and TensorRT-RTX runs engines, see `tensorrt_stand_in`. Of cuBLAS
there is the library GPU_CUBLAS, or nothing.
"""

import os
import sys

import gpu_stand_in
import gpu_tools
import tensorrt_stand_in

fault, kernel = os.environ.get("GPU_FAULT", ":").split(":")
sys.modules["cuda.bindings.driver"] = gpu_stand_in.Driver(fault, kernel)
if "onnxruntime" in sys.argv and fault != "no provider":  # the form that a child process checks
    gpu_stand_in.give_onnxruntime_a_gpu(fault, kernel)
if "tensorrt-rtx" in sys.argv and fault != "no library":
    tensorrt_stand_in.give_rtx_a_gpu(fault, kernel)
gpu_tools.give_cublas(os.environ.get("GPU_CUBLAS"))
