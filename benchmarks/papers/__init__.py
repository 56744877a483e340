"""Reproductions of the tables and figures of five papers, one folder per paper."""
