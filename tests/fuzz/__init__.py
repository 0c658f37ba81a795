"""What `tests/test_fuzz*.py` calls: every public name of the library, a good call of each, and bad values."""
