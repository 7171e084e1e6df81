"""The fields of requests, and the requests to the scheduler that they become."""
