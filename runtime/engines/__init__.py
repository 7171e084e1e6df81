"""Engines: what opens and runs a graph, and what builds one."""
