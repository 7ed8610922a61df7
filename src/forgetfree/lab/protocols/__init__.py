"""Protocols: the order of learning and testing, one file for each scenario."""
