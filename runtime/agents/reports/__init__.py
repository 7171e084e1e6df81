"""What a run was: its events, trace, timeline, cost and critical path."""
