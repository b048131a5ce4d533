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
from .robot import EXACT_SECONDS as EXACT_SECONDS
