"""LXC containers, the backend of container cases of several drivers."""
