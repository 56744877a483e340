"""What happens to a product on the GPU before it is stored."""
