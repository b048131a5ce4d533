from .keyword_types import (
    BurstKeywords as BurstKeywords,
    SampleKeywords as SampleKeywords,
    SourceKeywords as SourceKeywords,
    TranscodeKeywords as TranscodeKeywords,
    TrialKeywords as TrialKeywords,
    ValidateKeywords as ValidateKeywords,
)
from .options import (
    USUAL_VMAF_MODEL as USUAL_VMAF_MODEL,
    Limits as Limits,
    QualityGate as QualityGate,
    Retime as Retime,
    Sampling as Sampling,
    Scale as Scale,
    Target as Target,
)
from .output import (
    EncoderOptions as EncoderOptions,
    FrameOutput as FrameOutput,
    Output as Output,
    QualityScale as QualityScale,
    VideoOutput as VideoOutput,
)
from .parse import (
    ALWAYS_SCORED as ALWAYS_SCORED,
    as_place as as_place,
    as_source as as_source,
    given as given,
    parse_by_codec as parse_by_codec,
    parse_bytes as parse_bytes,
    parse_names as parse_names,
    parse_numbers as parse_numbers,
    parse_scores as parse_scores,
    typed as typed,
)
from .run import (
    BACKENDS as BACKENDS,
    BAD_ROWS as BAD_ROWS,
    CLOCK_RULE as CLOCK_RULE,
    CONDITIONAL as CONDITIONAL,
    HDR as HDR,
    SAMPLE as SAMPLE,
    SCORING as SCORING,
    RunOptions as RunOptions,
    RunSettings as RunSettings,
    SourceOptions as SourceOptions,
    build_gate as build_gate,
    build_options as build_options,
    build_scale as build_scale,
    build_settings as build_settings,
    decides_output as decides_output,
    options_of_command as options_of_command,
)
