"""Text in progress: from tokens to characters, tool calls and authors."""
