from .audio_decoder import AudioDecoder as AudioDecoder, AudioPacket as AudioPacket
from .edit_list import demuxer_options as demuxer_options
from .gop_frames import DecoderConfig as DecoderConfig, GopDecoders as GopDecoders
from .jpeg import JpegCoder as JpegCoder, jpeg_coder as jpeg_coder
from .midway import FrameProperties as FrameProperties, HeldBackFrames as HeldBackFrames, properties_of as properties_of
from .numbered import NumberedFrames as NumberedFrames, as_a_store_decodes as as_a_store_decodes
from .options import EncoderOptions as EncoderOptions
from .packets import (
    PacketIndex as PacketIndex,
    PacketIndexer as PacketIndexer,
    PacketSpan as PacketSpan,
    spans_of as spans_of,
)
from .picture_facts import (
    Turn as Turn,
    hdr_metadata_of as hdr_metadata_of,
    rounded_crop as rounded_crop,
    turn_of as turn_of,
)
from .pyav import (
    demuxed as demuxed,
    fraction as fraction,
    is_one_of_views as is_one_of_views,
    light_side_data as light_side_data,
    open_input as open_input,
    open_output as open_output,
    plane_lines as plane_lines,
    reason_of as reason_of,
    time_base_of as time_base_of,
    video_decoder as video_decoder,
    visible_bytes as visible_bytes,
)
from .rgb import (
    HD_LINES as HD_LINES,
    SHORT_OF_WHITE as SHORT_OF_WHITE,
    STRETCH as STRETCH,
    UNSPECIFIED as UNSPECIFIED,
    ToRgb as ToRgb,
    resized_picture as resized_picture,
    write_rgb as write_rgb,
)
from .rgb16 import deep_resized as deep_resized, deep_rgb as deep_rgb
from .seek import SeekPoint as SeekPoint, jump_to as jump_to, seek_to as seek_to, survey_of as survey_of
from .series import decode_picture as decode_picture, join_pictures as join_pictures, pages_left_out as pages_left_out
from .sound import Sound as Sound
from .source import (
    RAW_STREAMS as RAW_STREAMS,
    READ_OPTIONS as READ_OPTIONS,
    Source as Source,
    file_url as file_url,
    open_video as open_video,
)
from .timestamps import (
    PacketsAhead as PacketsAhead,
    StampCounts as StampCounts,
    TimedFrame as TimedFrame,
    on_time_line as on_time_line,
)
from .writer import (
    VideoWriter as VideoWriter,
    payload_checksum as payload_checksum,
    with_start_codes as with_start_codes,
)
