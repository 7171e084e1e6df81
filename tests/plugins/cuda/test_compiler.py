"""Every kernel compiled for every GPU without a GPU: the code for TensorRT, and the resources of a kernel."""

import re
import struct
import threading

import numpy as np
import pytest
from cuda_emulator import SHARED_BYTES
from kernel_cases import GPUS, kernel_case
from operator_cases import MAKERS, ON_GPUS, longest

from intaglio.errors import EngineError, MissingExtraError
from intaglio.plugins import OPS
from intaglio.plugins.cuda import __main__ as program
from intaglio.plugins.cuda import compiler, driver
from intaglio.plugins.cuda.compiler import SMS, compile_kernel, entry_points, parameters, resources
from intaglio.plugins.cuda.launching.launches import kernel_folders, operators
from intaglio.plugins.cuda.packed_weights.geometry import LIMIT, THREADS, many_bytes
from intaglio.processes.threads import limited

pytest.importorskip("cuda.bindings.nvrtc")

# Attributes of the records in a cubin's .nv.info: (symbol, value), four bytes each.
REGISTER_COUNT, FRAME_SIZE = 0x2F, 0x11


def sections(cubin: bytes) -> dict[str, bytes]:
    """The sections of a 64-bit ELF file by name."""
    offset, size, count, names = struct.unpack_from("<Q", cubin, 0x28) + struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, offset + i * size) for i in range(count)]
    strings = cubin[headers[names][4] :]
    return {
        strings[name : strings.index(b"\0", name)].decode(): b"" if kind == 8 else cubin[start : start + length]
        for name, kind, _, _, start, length in headers
    }


def values_in_cubin(cubin: bytes, attribute: int) -> dict[str, int]:
    """The value of an attribute for every kernel, read from the cubin; device functions are excluded."""
    found = sections(cubin)
    info, values, at = found[".nv.info"], {}, 0
    while at < len(info):
        kind, code, size = struct.unpack_from("<BBH", info, at)
        if kind == 4 and code == attribute:
            symbol, value = struct.unpack_from("<II", info, at + 4)
            (name,) = struct.unpack_from("<I", found[".symtab"], 24 * symbol)
            strings = found[".strtab"]
            symbol_name = strings[name : strings.index(b"\0", name)].decode()
            if not symbol_name.startswith("$"):
                values[symbol_name] = value
        at += 4 + (size if kind == 4 else 0)
    return values


def test_every_operator_has_a_kernel_but_those_of_sessions_on_a_cpu():
    assert {OPS[operator].folder for operator in MAKERS} - {*operators()} == {"packed_matmul"}


# Bytes of a thread, on GPUs after the T4, where two blocks share the registers; one alone would spill none.
SPILLED = {"group_matmul_4_levels": 80, "group_matmul_8_levels": 28}


@pytest.mark.parametrize("sm", GPUS)
@pytest.mark.parametrize("folder", kernel_folders())
def test_no_kernel_spills_or_exceeds_default_shared_memory(folder, sm):
    from cuda.bindings import nvrtc

    used = resources(folder, sm)
    assert sorted(used) == sorted(entry_points(folder))
    _, *version = nvrtc.nvrtcVersion()
    for entry, one in used.items():
        newest = SPILLED.get(entry, 0) if sm > min(SMS) else 0
        most = newest if version >= [13, 5] else 128  # NVRTC 13.0 spills some bytes of seven kernels
        assert max(one.spilled_bytes, one.stack_bytes) <= most, entry
        assert one.shared_bytes <= SHARED_BYTES, entry
        # A block of 128 threads and the 65536 registers of any of these GPUs' multiprocessors.
        assert 0 < one.registers <= 255, entry


@pytest.mark.parametrize("sm", GPUS)
@pytest.mark.parametrize("folder", kernel_folders())
def test_resources_equal_the_cubin(folder, sm):
    used, cubin = resources(folder, sm), compile_kernel(folder, sm).cubin
    assert values_in_cubin(cubin, REGISTER_COUNT) == {entry: one.registers for entry, one in used.items()}
    assert values_in_cubin(cubin, FRAME_SIZE) == {entry: one.stack_bytes for entry, one in used.items()}


@pytest.mark.parametrize("sm", GPUS)
def test_documented_table_has_every_kernel(sm, monkeypatch, capsys):
    monkeypatch.setattr(program, "SMS", [sm])
    program.main()
    rows = [re.findall(r"[\w.]+", line) for line in capsys.readouterr().out.splitlines()]
    for folder in kernel_folders():
        for entry, one in resources(folder, sm).items():
            numbers = (sm, one.registers, one.spilled_bytes, one.stack_bytes, one.shared_bytes)
            assert [entry, *map(str, numbers)] in rows


@pytest.mark.parametrize("sm", GPUS)
@pytest.mark.parametrize("operator", ON_GPUS)
def test_parameters_are_ordered_as_inputs_scalars_outputs(operator, sm):
    random = np.random.default_rng(0)
    ptx = compile_kernel(OPS[operator].folder, sm).ptx
    for case in (longest(operator), *(kernel_case(operator, random) for _ in range(20))):
        launch = case.launch(sm)
        inputs = sum(array is not None for array in case.inputs)
        expected = ["u64"] * inputs + ["u32"] * len(launch.scalars) + ["u64"] * len(case.made())
        assert parameters(ptx, launch.entry) == expected
        assert all(type(value) is int and -(2**31) <= value < 2**31 for value in launch.scalars)


@pytest.mark.parametrize("sm", GPUS)
@pytest.mark.parametrize("folder", ["int_attention", "int_linear", "int_matmul"])
def test_each_gpu_uses_its_own_matrix_instruction(folder, sm):
    ptx = compile_kernel(folder, sm).ptx.decode()
    assert f".target sm_{sm}" in ptx
    assert ("mma.sync.aligned.m8n8k16" in ptx) == (sm == 75)
    assert ("mma.sync.aligned.m16n8k32" in ptx) == (sm >= 80)
    assert ("cp.async.cg.shared.global" in ptx) == (sm >= 80)


@pytest.mark.parametrize("sm", GPUS)
@pytest.mark.parametrize("folder", ["lut_matmul", "group_matmul"])
def test_each_gpu_uses_its_own_float16_matrix_instruction(folder, sm):
    ptx = compile_kernel(folder, sm).ptx.decode()
    assert ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32" in ptx) == (sm == 75)
    assert ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in ptx) == (sm >= 80)
    assert ("cp.async.cg.shared.global" in ptx) == (sm >= 80)


@pytest.mark.parametrize("sm", GPUS)
@pytest.mark.parametrize("folder", ["lut_matmul", "group_matmul"])
def test_two_blocks_with_packed_weights_fit_a_multiprocessor(folder, sm):
    for entry, one in resources(folder, sm).items():
        blocks = 1 if sm == 75 and entry.endswith("levels") else 2  # which would spill there
        assert one.registers * THREADS * blocks <= 65536, entry
    shared = {75: 64 << 10, 80: 164 << 10, 90: 228 << 10}  # CUDA C++ programming guide, technical specifications
    for bits in (2, 3, 4, 5, 6, 8):
        assert many_bytes(bits, sm) <= LIMIT
        if sm > 75:  # a T4 holds two of many rows at 2 and 4 bits
            assert many_bytes(bits, sm) * 2 <= shared[sm], bits


def write_kernel(folder, body="y[0] = 1;"):
    source = f'extern "C" __global__ void __launch_bounds__(32) one(int* y) {{ {body} }}\n'
    (folder / "kernel.cu").write_text(source)
    return str(folder)


@pytest.mark.parametrize("sm", GPUS)
@pytest.mark.parametrize("folder", kernel_folders())
def test_ptx_states_the_oldest_version_for_the_gpu(folder, sm):
    versions = re.findall(rb"^\.version (.*)$", compile_kernel(folder, sm).ptx, re.MULTILINE)
    assert versions == [{75: b"6.5", 80: b"7.0", 90: b"7.8"}[sm]]


@pytest.mark.parametrize(("written", "stated"), [("9.5", "7.0"), ("10.0", "7.0"), ("7.0", "7.0"), ("6.4", "6.4")])
def test_version_of_ptx_is_lowered_only(written, stated):
    assert compiler._with_version(f"// by NVRTC\n.version {written}\n.target sm_80\n".encode(), 80) == (
        f"// by NVRTC\n.version {stated}\n.target sm_80\n".encode()
    )


def test_ptx_without_a_version_is_refused():
    with pytest.raises(EngineError, match="no version"):
        compiler._with_version(b".target sm_80", 80)


@pytest.mark.parametrize(("number", "sm"), [(10010, 75), (10020, 80), (11070, 90)])
def test_old_driver_is_refused(monkeypatch, number, sm):
    monkeypatch.setattr(driver, "call", lambda name: number)
    with pytest.raises(EngineError, match=rf"supports CUDA {number // 1000}\.{number % 1000 // 10}, .* sm_{sm} need"):
        driver.check_driver(sm)


@pytest.mark.parametrize(("number", "sm"), [(10020, 75), (11000, 80), (11080, 90), (13000, 75), (0, 90)])
def test_driver_that_reads_the_ptx_passes(monkeypatch, number, sm):
    monkeypatch.setattr(driver, "call", lambda name: number)
    driver.check_driver(sm)


def test_machine_without_a_driver_builds_for_others(monkeypatch):
    def missing(name: str):
        raise RuntimeError("libcuda.so.1 was not found")

    monkeypatch.setattr(driver, "call", missing)
    driver.check_driver(90)


def test_kernel_is_recompiled_only_after_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_kernel(tmp_path)
    first = compile_kernel(folder, 75)
    compiled = []
    original = compiler._compile
    monkeypatch.setattr(compiler, "_compile", lambda *arguments: compiled.append(1) or original(*arguments))
    assert compile_kernel(folder, 75) == first and not compiled
    write_kernel(tmp_path, "y[0] = 2;")
    assert compile_kernel(folder, 75) != first and len(compiled) == 1
    (tmp_path / "header.cuh").write_text("")
    compile_kernel(folder, 75)
    assert len(compiled) == 2


def test_kernel_in_another_folder_is_not_recompiled(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folders = tmp_path / "one" / "same", tmp_path / "two" / "same"
    for folder in folders:
        folder.mkdir(parents=True)
    first = compile_kernel(write_kernel(folders[0]), 75)
    monkeypatch.setattr(compiler, "_compile", None)
    assert compile_kernel(write_kernel(folders[1]), 75) == first


def test_unwritable_cache_is_ignored(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert b".entry one(" in compile_kernel(write_kernel(tmp_path), 80).ptx


def test_damaged_cache_is_rebuilt(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_kernel(tmp_path)
    compile_kernel(folder, 75)
    (kept,) = (tmp_path / "cache" / "intaglio" / "kernels").iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert b".entry one(" in compile_kernel(folder, 75).ptx


def test_array_in_local_memory_is_counted(tmp_path):
    body = (
        "int values[64]; for (int i = 0; i < 64; ++i) values[i] = y[i]; y[0] = values[y[1] & 63] + values[y[2] & 63];"
    )
    assert (
        resources(write_kernel(tmp_path, f"{body} __syncthreads(); y[values[5]] = values[y[3] & 63];"), 75)[
            "one"
        ].stack_bytes
        > 0
    )


def test_compile_error_is_one_line_with_its_location(tmp_path):
    with pytest.raises(EngineError, match=r"kernel.cu\(1\): error: identifier \"undeclared\" is undefined") as caught:
        compile_kernel(write_kernel(tmp_path, "y[0] = undeclared;"), 80)
    assert "\n" not in str(caught.value)


def test_unknown_gpu_architecture_is_refused(tmp_path):
    with pytest.raises(EngineError, match="sm_12: "):
        compile_kernel(write_kernel(tmp_path), 12)


def test_missing_nvrtc_names_the_package(monkeypatch):
    def missing():
        raise RuntimeError("libnvrtc.so.13 was not found")

    monkeypatch.setattr("cuda.bindings.nvrtc.nvrtcVersion", missing)
    compiler._nvrtc.cache_clear()
    with pytest.raises(MissingExtraError, match="pip install nvidia-cuda-nvrtc"):
        resources("requantize", 75)
    monkeypatch.undo()
    compiler._nvrtc.cache_clear()


def test_several_operators_are_compiled_at_once(monkeypatch):
    together = threading.Barrier(2, timeout=60)
    monkeypatch.setattr(compiler, "compile_kernel", lambda folder, sm: together.wait())
    with limited(2):
        compiler.compile_kernels(["requantize", "int_add"], 80)
