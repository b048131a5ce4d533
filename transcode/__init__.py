"""vidprep.transcode: raw videos in, a verified training set out."""
