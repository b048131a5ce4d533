"""The life of one video, top to bottom: `run_job` is the story."""
