import pytest

from intaglio.runtime.engines.tensorrt.refusals import Refusal, clean_message, error


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "IBuilder::buildSerializedNetwork: Error Code 1: Myelin ([pass.cpp:337: check_turing_op_compatibility] "
            "Cannot compile operation 'fc1' for Turing (SM75): FP32 GEMM is not supported. "
            "In compileGraph at /_src/optimizer/myelin/codeGenerator.cpp:2012)",
            "Turing (SM75): FP32 GEMM is not supported",
        ),
        (
            "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (Network has dynamic or shape inputs, but "
            "no optimization profile has been defined. In validate at /_src/optimizer/api/network.cpp:4023)",
            "Network has dynamic or shape inputs, but no optimization profile has been defined",
        ),
        (
            "IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find any implementation for "
            "node {ForeignNode[a...b]}.)",
            "Could not find any implementation for node {ForeignNode[a...b]}",
        ),
        (
            'convertDtype(type, &t) && "Unsupported data type for the Cast operator!"',
            "Unsupported data type for the Cast operator",
        ),
        ("Assertion failed: a == B::kC: NonZero was\nnot found.", "NonZero was not found"),
        ("something quite else", "something quite else"),
    ],
)
def test_message_keeps_the_reason_without_its_wrapping(message: str, reason: str) -> None:
    assert clean_message(message) == reason


def test_many_rejections_are_counted_in_a_short_line() -> None:
    refusals = [Refusal(f"node_{index}", "Unique", "TensorRT has no such operator") for index in range(300)]
    message = str(error("tensorrt 11.4", "t4", refusals))
    assert "node node_0 (Unique): TensorRT has no such operator (299 more: node_1 (Unique), " in message
    assert len(message) < 300


@pytest.mark.parametrize(
    ("refusal", "fix"),
    [
        (Refusal("a", "MatMul", "Cuda Runtime (out of memory)"), "--batch MIN:OPT:MAX"),
        (Refusal("", "", "Failed to import initializer: w"), "Cast to float16"),
        (Refusal("a", "QLinearMatMul", "TensorRT has no such operator"), "DequantizeLinear around MatMul"),
        (Refusal("a", "IntGelu", "Plugin not found", "intaglio"), "--no-plugins"),
        (Refusal("a", "Anything", "for a reason unheard of"), "ort-cpu"),
    ],
)
def test_every_reason_has_a_fix(refusal: Refusal, fix: str) -> None:
    assert fix in refusal.advice("t4")
