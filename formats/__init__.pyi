from .manifest.row import ManifestRow as ManifestRow
from .manifest.table import read_manifest as read_manifest
from .stores.base import FrameStore as FrameStore, StoredVideo as StoredVideo
from .stores.raw_files import VideoFiles as VideoFiles
from .stores.registry import open_store as open_store
from .training.dataset import VideoDataset as VideoDataset
from .training.elastic import ElasticDistributedSampler as ElasticDistributedSampler
from .training.items import pad_collate as pad_collate
from .training.loader import PrefetchLoader as PrefetchLoader
from .training.samplers import (
    ClipSampler as ClipSampler,
    clips_around as clips_around,
    clips_at_random_indices as clips_at_random_indices,
    clips_at_random_timestamps as clips_at_random_timestamps,
    clips_at_regular_indices as clips_at_regular_indices,
    clips_at_regular_timestamps as clips_at_regular_timestamps,
)
from .training.uniform import clips_uniform as clips_uniform, sample_fps as sample_fps
