#!/bin/sh
# Isolated from the current directory, PYTHONPATH and user packages.
exec /usr/lib/pvebench/bin/python3 -I -m pvebench "$@"
