"""What other tools read, and labels carried over."""
