"""What runs inside Triton, on its Python backend: the classes that each written model.py imports."""
