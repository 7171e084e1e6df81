"""Tools that come with Intaglio: `calculate`, `search` over a folder of texts, and `read_page` and `read_file`."""
