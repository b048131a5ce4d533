from .audit import AuditReport as AuditReport
from .check import Finding as Finding, Indexed as Indexed, ValidationReport as ValidationReport
from .choose import Tuned as Tuned
from .cli.bench import bench as bench
from .cli.check import doctor as doctor, index as index, report as report, validate as validate
from .cli.choose import sweep as sweep, tune as tune
from .cli.make import burst as burst, transcode as transcode
from .cli.manage import Packed as Packed, compact as compact, label as label, merge as merge, pack as pack
from .destination import Compacted as Compacted, Merged as Merged, Relabelled as Relabelled
from .pages import ReportFiles as ReportFiles
from .run import Summary as Summary
from .settings import (
    EncoderOptions as EncoderOptions,
    FrameOutput as FrameOutput,
    Limits as Limits,
    QualityGate as QualityGate,
    Retime as Retime,
    RunSettings as RunSettings,
    Scale as Scale,
    Target as Target,
    VideoOutput as VideoOutput,
)
