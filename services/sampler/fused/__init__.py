"""One rank's faster forward: fused kernels over tables that are made once a run."""
