"""Networks over graphs larger than a device, batch by batch."""
