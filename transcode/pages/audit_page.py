"""The page of an audit: what was recognised, the forms of its videos, and every finding."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from vidprep.transcode.audit.audit import FINDINGS_NAME, AuditReport, Form, FormFacts, write_findings
from vidprep.transcode.audit.dataset import ERROR
from vidprep.transcode.pages.page import Column, Page, ReportFiles, Section, Table, Tile, decimals, write_page

FINDINGS_SHOWN = 2000
FORMS = [
    Column("codec"),
    Column("pixel format"),
    Column("size"),
    Column("videos", decimals(0)),
    Column("frames", decimals(0)),
    Column("frames per second"),
    Column("frames per keyframe"),
    Column("decoded by"),
    Column("not decoded by"),
]
FINDINGS = [
    Column("level"),
    Column("kind"),
    Column("file"),
    Column("part"),
    Column("s", decimals(2)),
    Column("finding"),
]


def write_audit(report: AuditReport, name: str, created: str, out: Path) -> ReportFiles:
    """Write findings.parquet and report.html, .md and .json.

    Args:
        report: The result of the audit.
        name: Name of the dataset.
        created: Date to show.
        out: The output folder, which is created.

    Raises:
        MissingError: A package for pages is not installed.
        OSError: The files cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_findings(report.findings, out / FINDINGS_NAME)
    page = Page("vidprep audit", f"{name} — {created}", [_glance(report), _forms(report), _findings(report)])
    return write_page(page, out, report.as_json() | {"path": name, "created": created})


def _glance(report: AuditReport) -> Section:
    errors = Counter(finding.kind for finding in report.findings if finding.level == ERROR)
    warnings = Counter(finding.kind for finding in report.findings if finding.level != ERROR)
    tiles = [
        Tile(report.dataset, report.about),
        Tile(f"{report.checked:,}", "videos read to their end"),
        Tile(f"{errors.total():,}", "errors", _kinds(errors)),
        Tile(f"{warnings.total():,}", "warnings", _kinds(warnings)),
    ]
    return Section("At a glance", tiles=tiles)


def _kinds(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common())


def _forms(report: AuditReport) -> Section:
    text = "Every library that is installed was asked for the first frame of one video of each row; NVIDIA's decoders are known by a table."
    return Section("Videos", text, tables=[Table(FORMS, [_form(*item) for item in report.forms.items()])])


def _form(form: Form, facts: FormFacts) -> list[str | int]:
    low, high = facts.rates
    return [
        form.codec,
        form.pixel_format,
        f"{form.width}x{form.height}",
        facts.num_videos,
        facts.num_frames,
        f"{low:.6g}" if f"{low:.6g}" == f"{high:.6g}" else f"{low:.6g} to {high:.6g}",
        facts.gops_shown.removesuffix(","),
        ", ".join(name for name, why in facts.loaders.items() if not why),
        "; ".join([*(f"{name} ({why})" for name, why in facts.loaders.items() if why), *facts.hardware]) or "–",
    ]


def _findings(report: AuditReport) -> Section:
    if not report.findings:
        return Section("Findings", "Nothing contradicts what the dataset declares.")
    findings = sorted(report.findings, key=lambda finding: (finding.level, finding.path))
    rows = [
        [finding.level, finding.kind, finding.path, finding.part, finding.seconds, finding.text]
        for finding in findings[:FINDINGS_SHOWN]
    ]
    text = (
        f"The first {len(rows):,} of {len(findings):,}; all are in {FINDINGS_NAME}."
        if len(findings) > len(rows)
        else ""
    )
    return Section("Findings", text, tables=[Table(FINDINGS, rows, sortable=True)])
