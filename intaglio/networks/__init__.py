"""Networks in torch, which exporters trace and training trains, and the files that describe them."""
