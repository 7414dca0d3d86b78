"""What `check_exactness` is made of."""
