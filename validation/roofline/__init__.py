"""The verb `roofline`: the limits of this machine, and the work of a bundle."""
