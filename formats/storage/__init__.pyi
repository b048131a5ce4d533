from .base import (
    OBJECT_STORES as OBJECT_STORES,
    Storage as Storage,
    check_no_password as check_no_password,
    is_url as is_url,
    lacks_bucket as lacks_bucket,
    normalized as normalized,
    split_url as split_url,
    without_password as without_password,
)
from .belady import NEVER as NEVER, BeladyCache as BeladyCache
from .local import (
    DISK_FULL as DISK_FULL,
    NO_LINKS as NO_LINKS,
    LocalStorage as LocalStorage,
    check_writable as check_writable,
    cpu_seconds as cpu_seconds,
    file_system_of as file_system_of,
    first_link as first_link,
    is_disk_full as is_disk_full,
    is_out_of_memory as is_out_of_memory,
    is_regular as is_regular,
    memory_bytes as memory_bytes,
    open_unlinked as open_unlinked,
    partial_of as partial_of,
    refuse_links as refuse_links,
    remove_file as remove_file,
    replacing as replacing,
    sampled_digest as sampled_digest,
    sha256_of as sha256_of,
)
from .memory_ranges import MemoryConnection as MemoryConnection
from .range_access import connection_to as connection_to, make_requests_here as make_requests_here
from .range_reader import RangeReader as RangeReader
from .range_server import serve_ranges as serve_ranges
from .ranges import (
    Piece as Piece,
    RangeConnection as RangeConnection,
    RangeCounts as RangeCounts,
    RangePlace as RangePlace,
    RemoteObject as RemoteObject,
    ReplacedObjectError as ReplacedObjectError,
    Run as Run,
    Wanted as Wanted,
    server_address as server_address,
    use_server as use_server,
)
from .remote import ObjectStorage as ObjectStorage, storage_of as storage_of
from .shared import SharedTable as SharedTable, inherited_files as inherited_files, is_for_child as is_for_child
from .untrusted import (
    INT64_MAX as INT64_MAX,
    MAX_JSON_BYTES as MAX_JSON_BYTES,
    MAX_NUMBER_LENGTH as MAX_NUMBER_LENGTH,
    MAX_TABLE_BYTES as MAX_TABLE_BYTES,
    PICTURE_SIDE_MAX as PICTURE_SIDE_MAX,
    ArrowStream as ArrowStream,
    arrow_file as arrow_file,
    as_parquet as as_parquet,
    bounded_fraction as bounded_fraction,
    cached_method as cached_method,
    check_regular as check_regular,
    exact_ratio as exact_ratio,
    import_pyarrow as import_pyarrow,
    is_lfs_pointer as is_lfs_pointer,
    open_descriptor as open_descriptor,
    open_regular as open_regular,
    parse_json as parse_json,
    rate_of as rate_of,
    read_json as read_json,
    read_parquet as read_parquet,
    read_regular as read_regular,
    seal_footer as seal_footer,
    weak_method as weak_method,
    whole_between as whole_between,
    with_plain_types as with_plain_types,
)
