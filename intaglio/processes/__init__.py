"""Processes, threads and tasks that end when they should."""
