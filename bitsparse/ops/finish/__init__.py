"""What happens to a product before it is stored."""
