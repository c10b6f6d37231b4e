"""How an agent that knows its tools does each job of bench/jobs.py, one module per toolset."""
