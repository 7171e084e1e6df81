"""Reading the bodies of requests: JSON, forms with files, token ids; bounded in bytes and time."""
