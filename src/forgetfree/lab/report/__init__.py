"""Reports: tables and figures from run folders, and from nothing else."""
