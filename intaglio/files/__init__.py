"""Files of users: read within limits, written whole or not at all."""
