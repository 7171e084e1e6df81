"""The verb `tune-decoding`: BiLD's thresholds on the user's own texts."""
