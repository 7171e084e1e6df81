"""What people see: progress, suggested names, pages and pictures, and how much is printed."""
