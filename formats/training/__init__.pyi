from .dataset import VideoDataset as VideoDataset
from .loader import GIBIBYTE as GIBIBYTE, PrefetchLoader as PrefetchLoader
from .rows import (
    RowsGap as RowsGap,
    read_rows as read_rows,
    rows_at_times as rows_at_times,
    rows_of_frames as rows_of_frames,
)
