from .folders import export as export
from .labels import carry_over as carry_over
from .pack import Order as Order, pack_store as pack_store, pack_videos as pack_videos
from .robot import (
    check_robot_output as check_robot_output,
    complete_robot_dataset as complete_robot_dataset,
    forget_robot_dataset as forget_robot_dataset,
    is_robot_output as is_robot_output,
)
from .robot_pictures import pictures_folder as pictures_folder, with_pictures_as_videos as with_pictures_as_videos
from .targets import TARGETS as TARGETS, PackOptions as PackOptions
