"""The owner of one command. Imports the standard library and itself alone; runs on Python 3.9 or later."""
