"""Reports of runs, the live view, and the explorer of mechanisms.

    write_report(report_of([Path("runs/first")]), Path("report.html"))

Pages are self-contained and ask nobody else's server; the extra `report` brings what they are made
with. It imports runs and below.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import show

if TYPE_CHECKING:
    from sottovoce.reporting.report_data import report_of as report_of
    from sottovoce.reporting.run_report import write_report as write_report

show(
    __name__,
    {
        "report_data": ["report_of"],
        "run_report": ["write_report"],
    },
)
