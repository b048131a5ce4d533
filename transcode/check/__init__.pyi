from .doctor import examine as examine, examine_destination as examine_destination
from .indexing import Indexed as Indexed, index_videos as index_videos
from .other_readers import (
    LOADERS as LOADERS,
    STREAM_LOADERS as STREAM_LOADERS,
    Loader as Loader,
    RgbArray as RgbArray,
    StreamLoader as StreamLoader,
    installed as installed,
)
from .results import VALIDATION_NAME as VALIDATION_NAME, read_results as read_results
from .robot_files import (
    STATE_NAME as STATE_NAME,
    faults_of_files as faults_of_files,
    faults_of_robot_files as faults_of_robot_files,
    written_files as written_files,
)
from .storage_trial import Finding as Finding
from .validate import (
    ValidateOptions as ValidateOptions,
    ValidationReport as ValidationReport,
    check_destination as check_destination,
)
