"""Where the tasks of a long job run: in this process, in a pool of processes, or on the nodes of a Ray cluster."""
