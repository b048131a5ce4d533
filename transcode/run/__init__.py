"""What there is to do, in which order, and what happened."""
