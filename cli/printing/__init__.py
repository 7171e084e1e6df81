"""What commands print: results, tables, progress, text in progress."""
