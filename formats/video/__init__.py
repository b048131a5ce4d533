"""One video file: demuxed, decoded, put on a time line, encoded, muxed."""
