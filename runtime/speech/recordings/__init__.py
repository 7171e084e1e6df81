"""Open the recogniser of a bundle of either kind, and transcribe recordings with it."""
