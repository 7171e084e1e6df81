"""Open the recogniser of a bundle, whatever its kind, and transcribe recordings with it."""
