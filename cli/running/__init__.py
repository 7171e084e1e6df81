"""Running a command: its help and options, exit code, event loop, and its own standard output."""
