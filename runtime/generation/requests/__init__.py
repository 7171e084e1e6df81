"""Requests for text: conversations and prompts, encoded, with their options checked."""
