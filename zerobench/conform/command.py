"""Command: ``zerobench conform``."""

from __future__ import annotations

import argparse
import json

from zerobench.conform import page, running, verdicts
from zerobench.errors import Unmeasured
from zerobench.extras import demand_extra
from zerobench.machine.files import check_writable, write_together

_RESULTS, _TABLE, _PAGE = FILES = ("conformance.json", "conformance.md", "conformance.html")


def execute(given: argparse.Namespace) -> int:
    """Examine the engines, or merge results; write the files; return the exit code.

    Raises:
        UsageError: if an engine or a file is invalid, or if the directory cannot be written.
        Unmeasured: if the run of an engine did not come to its end.
    """
    demand_extra("report")
    demand_extra("suites")
    check_writable(given.out, FILES)
    value = verdicts.merge(given.merge) if given.merge else _examined(given)
    written = write(given, value)
    print(written[_TABLE].partition("\n## ")[0])
    return verdicts.exit_code(value)


def _examined(given: argparse.Namespace) -> verdicts.Json:
    """Write after each engine, so that an interrupted run has a table; an engine whose run did not end is in none."""
    shards, unfinished = [], []
    for subject in given.subjects:
        try:
            shards.append(running.examine(subject, given.profile, given.out, given.select))
        except Unmeasured as error:
            unfinished.append(str(error))
            continue
        write(given, verdicts.compose(shards))
    if unfinished:
        raise Unmeasured("\n".join(unfinished))
    return verdicts.compose(shards)


def write(given: argparse.Namespace, value: verdicts.Json) -> dict[str, str]:
    """Write all files together; returns their texts by name."""
    badges = {f"badge-{running.slug(each['subject'])}.json": page.badge(each) for each in value["engines"]}
    results = json.dumps(value, indent=1) + "\n"
    texts = {_RESULTS: results, _TABLE: page.as_markdown(value), _PAGE: page.as_html(value), **badges}
    write_together(given.out, texts)
    return texts
