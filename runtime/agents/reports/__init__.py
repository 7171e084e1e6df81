"""Reports of a run: its trace, timeline, cost and critical path."""
