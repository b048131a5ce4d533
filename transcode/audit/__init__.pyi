from .audit import (
    FINDINGS_NAME as FINDINGS_NAME,
    AuditReport as AuditReport,
    Form as Form,
    FormFacts as FormFacts,
    audit_dataset as audit_dataset,
    summary_lines as summary_lines,
    write_findings as write_findings,
)
from .dataset import ERROR as ERROR, WARNING as WARNING, Finding as Finding
from .robot import EXACT_SECONDS as EXACT_SECONDS, TOLERANCE_SECONDS as TOLERANCE_SECONDS
from .statistics import (
    Statistics as Statistics,
    is_numeric as is_numeric,
    joined_statistics as joined_statistics,
    number_type as number_type,
    statistics_of as statistics_of,
    statistics_of_pictures as statistics_of_pictures,
    statistics_of_rows as statistics_of_rows,
)
