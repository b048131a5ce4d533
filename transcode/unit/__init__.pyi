from .job import (
    Context as Context,
    Job as Job,
    JobNotDone as JobNotDone,
    JobResult as JobResult,
    JoinJob as JoinJob,
    SegmentJob as SegmentJob,
    Split as Split,
    Upload as Upload,
    WholeJob as WholeJob,
    discard as discard,
    fail as fail,
    new_row as new_row,
)
from .life import run_job as run_job
from .queue import TRIES as TRIES, JobQueue as JobQueue
from .target_search import Search as Search, reached_by as reached_by, unscored as unscored
