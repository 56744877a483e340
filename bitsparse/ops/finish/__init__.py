"""The last steps of a product before it is stored: epilogues, quantisation schemes and thresholds."""
