"""A CPU stand-in for libcuda and libnccl: built on demand, loaded in their place."""
