from .events import Events as Events, RunView as RunView, VideoState as VideoState
from .plan import Plan as Plan, unit_of_problem as unit_of_problem
from .progress import Progress as Progress, bar as bar
from .run import Summary as Summary
from .session import RunRequest as RunRequest, execute as execute, make_request as make_request, preview as preview
from .target import (
    MISSES_ALLOWED as MISSES_ALLOWED,
    PROBE_SECONDS as PROBE_SECONDS,
    excerpt as excerpt,
    run_trial as run_trial,
    shared_value as shared_value,
)
