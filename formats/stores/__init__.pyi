from .base import (
    MAX_RATE as MAX_RATE,
    ComingClip as ComingClip,
    Frames as Frames,
    FrameStore as FrameStore,
    StoredVideo as StoredVideo,
    described as described,
)
from .data_files import DataFiles as DataFiles, FilePart as FilePart, Handles as Handles
from .encoded import VideoStore as VideoStore
from .gops import (
    GOPS_NAME as GOPS_NAME,
    differing_rows as differing_rows,
    facts_in as facts_in,
    facts_of_rows as facts_of_rows,
    known_in as known_in,
    known_of as known_of,
    num_not_indexed as num_not_indexed,
    write_gops as write_gops,
)
from .ids import Ids as Ids
from .joined import JoinedStores as JoinedStores
from .raw_files import VideoFiles as VideoFiles
from .registry import (
    ENCODED as ENCODED,
    STORES_OF_FRAMES as STORES_OF_FRAMES,
    VIDEO_SHARDS as VIDEO_SHARDS,
    VIDEO_STORES as VIDEO_STORES,
    kind_made_by_run as kind_made_by_run,
    kind_of_folder as kind_of_folder,
    layout_of as layout_of,
    open_store as open_store,
)
from .remote_files import RemoteFiles as RemoteFiles
from .shards import PARTS_MAX as PARTS_MAX, ShardWriter as ShardWriter, StoreLayout as StoreLayout, shuffled as shuffled
from .webdataset import TarLayout as TarLayout, TarStore as TarStore, sample_key as sample_key, tar_member as tar_member
