"""What follows or precedes an integer operator becomes part of it, bit for bit."""
