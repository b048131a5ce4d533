"""Sequences of frames for a training loop, decoded ahead."""
