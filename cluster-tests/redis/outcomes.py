"""Plug-in of pytest: writes the outcome of each test as a line of JSON to the file that OUTCOMES names."""

import json
import os

_texts = {}


def pytest_runtest_logreport(report):
    text = _texts.setdefault(report.nodeid, {"test": report.nodeid, "outcome": "passed", "text": ""})
    if report.outcome != "passed":
        # A failed phase counts for the test; what ends it first is kept.
        if text["outcome"] == "passed" or report.outcome == "failed":
            text["outcome"] = report.outcome
        text["text"] += str(report.longrepr)
        text["text"] += "".join(content for _, content in report.sections)
    if report.when == "teardown":
        with open(os.environ["OUTCOMES"], "a", encoding="utf-8") as out:
            out.write(json.dumps(_texts.pop(report.nodeid)) + "\n")
