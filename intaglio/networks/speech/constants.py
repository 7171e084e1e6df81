"""Numbers that the networks have in torch and in graphs."""

LONGEST_WAVE = 10000.0  # of the positions' sines, in frames / 2π; Vaswani et al., arXiv:1706.03762, section 3.5
DEVIATION_EPSILON = 1e-5  # added to the deviation of a band of the front end
# The convolution that halves the frame rate: frame i of its result is of the frames 2·i - 3 to 2·i + 1.
REDUCTION_KERNEL, REDUCTION_BEFORE = 5, 3
# Output of the first convolution in frames of padding: below all its outputs of features, and within float16.
PADDED = -30000.0
