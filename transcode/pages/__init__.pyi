from .audit_page import write_audit as write_audit
from .bench_section import place_name as place_name, write as write
from .live import monitor as monitor
from .report import ReportFiles as ReportFiles, write_report as write_report
from .sweep_section import at_rows as at_rows
