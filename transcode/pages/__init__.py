"""What people look at: pages of figures, and a live view of events."""
