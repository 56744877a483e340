"""Timing, tables and records for the benchmark suites in ``benchmarks/``."""

from bitsparse.bench.records import Machine, Record, cpu_name, program_commit
from bitsparse.bench.suite import Case, Prepared, Protocol, Unavailable, run_cases, time_interleaved
from bitsparse.bench.table import HEADINGS, format_table, record_row
from bitsparse.ops.recorded import time_once

__all__ = [
    "HEADINGS",
    "Case",
    "Machine",
    "Prepared",
    "Protocol",
    "Record",
    "Unavailable",
    "cpu_name",
    "format_table",
    "program_commit",
    "record_row",
    "run_cases",
    "time_interleaved",
    "time_once",
]
