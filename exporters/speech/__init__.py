"""Speech recognisers: the graphs of the networks in `intaglio.networks.speech`, one file each, and their export."""
