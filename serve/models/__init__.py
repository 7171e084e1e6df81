"""The models of a server, agents among them."""
