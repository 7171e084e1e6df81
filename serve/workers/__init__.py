"""The workers of encoders and speech recognisers, which run the calls of all clients."""
