from .array_merge import Merged as Merged, array_status as array_status, merge as merge
from .array_plan import (
    Selection as Selection,
    TaskShare as TaskShare,
    begin_part as begin_part,
    end_part as end_part,
    forget_plan as forget_plan,
    previewed as previewed,
)
from .destination import PLAN_NAME as PLAN_NAME, Destination as Destination, splits_name as splits_name
from .labels import PlannedLabels as PlannedLabels, plan_labels as plan_labels
from .lease import LeasePlace as LeasePlace
from .opening import (
    clear_other_stores as clear_other_stores,
    is_in_use as is_in_use,
    is_unfinished as is_unfinished,
    open_destination as open_destination,
    open_finished as open_finished,
)
from .outputs import Compacted as Compacted, Shards as Shards
from .partition import Partition as Partition, parse_partition as parse_partition, partitions_in as partitions_in
from .relabelling import Relabelled as Relabelled, relabel as relabel
from .run_file import (
    KnownUnit as KnownUnit,
    disk_of as disk_of,
    free_bytes as free_bytes,
    made_by_run as made_by_run,
    no_room as no_room,
    read_run as read_run,
    settings_of as settings_of,
    value_found_for as value_found_for,
)
