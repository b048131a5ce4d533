"""Pages with figures, and the live view of events."""
