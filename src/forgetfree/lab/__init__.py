"""The laboratory: benchmarks, protocols, records and reports around the core, which never imports it."""
