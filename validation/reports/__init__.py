"""The results of a validation, and their report as JSON and as a page."""
