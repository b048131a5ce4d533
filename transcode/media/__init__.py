"""Frames and audio samples of one video, from source to output. Knows no job and no row."""
