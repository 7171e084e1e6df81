"""Speech to train recognisers on: which sentences are spoken, by which voices, how it is mixed, and real recordings."""
