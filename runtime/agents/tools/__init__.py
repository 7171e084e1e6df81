"""Tools: made from functions or MCP servers, scheduled, and called within limits."""
