"""Many machines, one view: nodes, views, and the fabric between them (NATS)."""
