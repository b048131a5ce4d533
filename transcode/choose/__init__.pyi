from .bench.bench import BenchOptions as BenchOptions, add_speed_ups as add_speed_ups, survey as survey
from .bench.places import PATTERNS as PATTERNS
from .bench.train import machine as machine, results as results
from .sweep import FILES as FILES, SweepOptions as SweepOptions, check_out as check_out, measure as measure
from .sweep_tables import SUMMARY_NAME as SUMMARY_NAME, SWEEP_FORMAT as SWEEP_FORMAT
from .tune import Reading as Reading, Tuned as Tuned, recommend as recommend
