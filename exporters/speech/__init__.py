"""Speech recognisers: the graphs of the networks in `intaglio.speech`, one file each, and their export."""
