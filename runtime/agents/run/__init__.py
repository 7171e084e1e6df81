"""What happens in a run of an agent: events, and the observations of calls."""
