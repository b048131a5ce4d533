from .audio import AudioTrack as AudioTrack
from .bounds import ANY_FRAMES as ANY_FRAMES, check_claims as check_claims, most_repeats as most_repeats
from .encode import encode_and_measure as encode_and_measure
from .ffmpeg import (
    build_command as build_command,
    measure_file as measure_file,
    run_ffmpeg as run_ffmpeg,
    score_with_ffmpeg as score_with_ffmpeg,
    why_not_ffmpeg as why_not_ffmpeg,
)
from .ffmpeg_program import (
    encoder_version as encoder_version,
    ffmpeg_version as ffmpeg_version,
    find_ffmpeg as find_ffmpeg,
    has_encoder as has_encoder,
    is_of_this_pyav as is_of_this_pyav,
    used_versions as used_versions,
)
from .frames import SourceFacts as SourceFacts
from .jpeg_frames import (
    LOSSLESS as LOSSLESS,
    CodedFrame as CodedFrame,
    StoredFrames as StoredFrames,
    kept_or_coded as kept_or_coded,
    own_jpegs as own_jpegs,
    store_frames as store_frames,
)
from .metrics import (
    FrameScorer as FrameScorer,
    QualityReport as QualityReport,
    QualitySums as QualitySums,
    not_scored as not_scored,
)
from .picture import Picture as Picture
from .picture_filter import PictureFilter as PictureFilter
from .stream import (
    FrameStream as FrameStream,
    OutputTiming as OutputTiming,
    open_source as open_source,
    sampled_frames as sampled_frames,
    timing_of as timing_of,
)
from .verify import (
    FileTimes as FileTimes,
    Measurements as Measurements,
    check_file as check_file,
    frame_checksum as frame_checksum,
    peak_of as peak_of,
)
