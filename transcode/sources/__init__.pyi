from .listing import NUMBERED as NUMBERED, find_sources as find_sources
from .outputs import STATE_DIR as STATE_DIR
from .robot import (
    EPISODES_PER_CHUNK as EPISODES_PER_CHUNK,
    episode_video as episode_video,
    is_robot_dataset as is_robot_dataset,
)
from .scratch import (
    as_file as as_file,
    as_folder as as_folder,
    current_state as current_state,
    fetch as fetch,
    present as present,
    remarks_on_pictures as remarks_on_pictures,
    remote_folder as remote_folder,
    scratch_folder as scratch_folder,
)
from .table_rows import (
    IN_MEMORY as IN_MEMORY,
    SKIPPED as SKIPPED,
    CutColumns as CutColumns,
    chosen_labels as chosen_labels,
    cut_columns as cut_columns,
    fault_lines as fault_lines,
)
from .tables import (
    KEYS as KEYS,
    READERS as READERS,
    VIDEO_EXTENSIONS as VIDEO_EXTENSIONS,
    SourceTable as SourceTable,
    TableRow as TableRow,
    csv_cell as csv_cell,
    faults_of_columns as faults_of_columns,
    is_table as is_table,
    one_line as one_line,
    read_source_table as read_source_table,
    storable as storable,
)
from .unit import (
    SourceList as SourceList,
    SplitDrawing as SplitDrawing,
    Unit as Unit,
    choose as choose,
    choose_ids as choose_ids,
)
