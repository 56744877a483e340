"""Measurements of bitsparse against its peers; the programs are ``run.py``, ``paper.py`` and ``summary.py``."""
