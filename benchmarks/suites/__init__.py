"""Lists of cases, one module a suite, and the bars that their records must meet."""
