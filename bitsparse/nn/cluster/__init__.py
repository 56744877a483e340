"""Networks over graphs that are larger than a device, run batch by batch."""
