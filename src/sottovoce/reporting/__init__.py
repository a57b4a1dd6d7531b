"""Reports about runs, the state of a run while it trains, and the explorer of mechanisms.

    write_report(report_of([Path("runs/first")]), Path("report.html"))

Pages of reports are single files that load nothing from the network; they need the extra `report`.
This package imports `sottovoce.runs` and the packages below it.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import export_lazily

if TYPE_CHECKING:
    from sottovoce.reporting.report_data import report_of as report_of
    from sottovoce.reporting.run_report import write_report as write_report

export_lazily(
    __name__,
    {
        "report_data": ["report_of"],
        "run_report": ["write_report"],
    },
)
