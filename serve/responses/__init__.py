"""Writing responses: whole or streamed, usage, errors."""
