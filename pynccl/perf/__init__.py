"""What ``python -m pynccl perf`` measures: NCCL's operations, as nccl-tests measures them."""

__all__: list[str] = []
