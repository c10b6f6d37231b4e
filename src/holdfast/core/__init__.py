"""What runners and hosts share: the standard library alone, Python 3.9 or later."""
