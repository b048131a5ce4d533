from .folders import export as export
from .labels import carry_over as carry_over
from .pack import pack_store as pack_store, pack_videos as pack_videos
from .targets import TARGETS as TARGETS
