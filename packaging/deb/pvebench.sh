#!/bin/sh
# Isolated: neither this directory nor PYTHONPATH nor a user's own packages take part.
exec /usr/lib/pvebench/bin/python3 -I -m pvebench "$@"
