"""The gradients of attention, FlashAttention-2's way: weights are made again from the saved residual, never kept."""
