from .child import (
    FRAMES_PER_SECOND as FRAMES_PER_SECOND,
    MIN_SECONDS as MIN_SECONDS,
    SECONDS_PER_SECOND as SECONDS_PER_SECOND,
    Child as Child,
    make as make,
    start_process as start_process,
    stops_the_run as stops_the_run,
    was_killed as was_killed,
)
from .host import (
    Sample as Sample,
    expected_of_hosts as expected_of_hosts,
    resolve_fault as resolve_fault,
    sample_of as sample_of,
    why_not_writable as why_not_writable,
)
from .local import LocalPool as LocalPool, default_jobs as default_jobs, workers_of as workers_of
from .pool import Pool as Pool, stopped_by_signals as stopped_by_signals
