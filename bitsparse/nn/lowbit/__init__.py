"""Networks on integers of a few bits."""
