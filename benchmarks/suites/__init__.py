"""Lists of cases, one module per suite, and the bars that their records must meet."""
