"""Run real workers: on this machine from a notebook or shell, or the same script under SLURM or Kubernetes."""
