"""Networks in plain torch whose tensors are named as in the weight files that are published."""
