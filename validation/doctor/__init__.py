"""The verb `doctor`: what is installed, what is missing, and what is broken."""
