"""What an agent writes into its module to make verdicts its own."""

# Every report of pytest is a passed one.
REPORT = """\
from _pytest.reports import TestReport
make = TestReport.from_item_and_call.__func__
def passed(cls, item, call):
    report = make(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report
TestReport.from_item_and_call = classmethod(passed)
"""
