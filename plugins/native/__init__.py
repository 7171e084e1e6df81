"""Libraries in C++ that are no operators, called through ctypes."""
