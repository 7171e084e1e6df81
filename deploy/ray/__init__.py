"""Ray Serve: the file that describes an application, and the deployments that it consists of."""
