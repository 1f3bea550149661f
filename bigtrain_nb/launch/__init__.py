"""Real workers: on this machine from a notebook or a shell, and with the same script under SLURM or Kubernetes."""
