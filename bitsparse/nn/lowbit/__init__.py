"""Networks on integers of few bits."""
