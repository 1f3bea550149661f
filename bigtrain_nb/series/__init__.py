"""Code that only the series uses: exercises, figures of single cells, simulated machines and stores."""
