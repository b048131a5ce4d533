"""Choose videos and frames of finished destinations, of which another one is made."""
