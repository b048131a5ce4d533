from .dataset import VideoDataset as VideoDataset
from .loader import GIBIBYTE as GIBIBYTE, PrefetchLoader as PrefetchLoader
