from .audit.audit import AuditReport as AuditReport
from .check.doctor import Finding as Finding
from .check.indexing import Indexed as Indexed
from .check.validate import ValidationReport as ValidationReport
from .choose.tune import Tuned as Tuned
from .cli.bench import bench as bench
from .cli.check import doctor as doctor, index as index, validate as validate
from .cli.choose import sweep as sweep, tune as tune
from .cli.make import burst as burst, transcode as transcode
from .cli.manage import compact as compact, label as label, merge as merge
from .cli.pack import Packed as Packed, pack as pack
from .cli.pages import report as report
from .cli.scan import scan as scan
from .cli.select import select as select
from .clips.scan import ScanSummary as ScanSummary
from .destination.array_merge import Merged as Merged
from .destination.outputs import Compacted as Compacted
from .destination.relabelling import Relabelled as Relabelled
from .pages.page import ReportFiles as ReportFiles
from .run.run import Summary as Summary
from .settings.options import (
    Limits as Limits,
    QualityGate as QualityGate,
    Retime as Retime,
    Scale as Scale,
    Target as Target,
)
from .settings.output import EncoderOptions as EncoderOptions, FrameOutput as FrameOutput, VideoOutput as VideoOutput
from .settings.run import RunSettings as RunSettings
