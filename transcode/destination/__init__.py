"""Who owns a destination, what stands in it, and how partitions become one."""
