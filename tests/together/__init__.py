"""What several processes do together, started by torchrun from the tests."""
