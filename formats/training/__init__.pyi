from .dataset import VideoDataset as VideoDataset
from .loader import GIBIBYTE as GIBIBYTE, PrefetchLoader as PrefetchLoader
from .samplers import (
    ClipSampler as ClipSampler,
    clips_at_random_indices as clips_at_random_indices,
    clips_at_random_timestamps as clips_at_random_timestamps,
    clips_at_regular_indices as clips_at_regular_indices,
    clips_at_regular_timestamps as clips_at_regular_timestamps,
    dense_sample_frames as dense_sample_frames,
    sample_frames as sample_frames,
)
