"""The tables and figures of the five papers again, one folder a paper."""
