"""Signs that a source video is damaged or incomplete, collected while it is read."""
