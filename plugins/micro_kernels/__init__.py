"""Emits the inner loops of GroupMatMul and LutMatMul on the CPU as C++, after QIGen (arXiv:2307.03738, section 3).

    instruction_sets.py   the C++ of each instruction set for the kernels' operations: a load, a shift, a product
    units.py              where the numbers of a packed weight are in the loaded words
    micro_kernel.py       the parameters of micro-kernels, which fit into the registers, and which are emitted
    unpacking.py          emits the loads, shifts and masks that unpack numbers into vectors
    prefetching.py        emits the prefetching of a weight
    group_matmul.py       the body of a micro-kernel with scales and zero points of groups
    lut_matmul.py         the body of a micro-kernel with lookup tables
    source.py             C++ text, line by line
    header.py             the header of all micro-kernels of an operator for one instruction set
    tables.py             which of them a machine uses: shipped tables, and the user's own
    tune.py               measures them on this machine

`plugins/ort/build.py` writes the headers below build/ and compiles them into the kernels, before anything is installed:
all but the last two files need nothing but the standard library, each other and the operators' signatures.
See docs/kernel-generation.md.
"""
