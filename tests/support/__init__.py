"""What every test stands on: a private world, a probe, points, bystanders, and the census afterwards."""
