"""The verb `bench`: latency, throughput and peak memory of a bundle in a process of its own, or of a server."""
