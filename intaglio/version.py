"""The version of intaglio, which manifests and reports record; pyproject.toml names the same one."""

__version__ = "0.1.0"
