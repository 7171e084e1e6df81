"""Speech recognition in torch: the front end and the networks, which exporters trace and training trains.

Nothing here is imported by what only runs a bundle.
"""
