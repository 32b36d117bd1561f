"""Our denoise loop: rows, tables and schedule of a run, its evaluations, its snapshots."""
