"""The real-process run: workers, servers and networks are broken on purpose, and judged."""
