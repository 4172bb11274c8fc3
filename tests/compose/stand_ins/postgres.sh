#!/bin/sh
# What docker-library's entrypoint does with the variables and files that compose.yaml gives it: initialize an empty
# volume, run the scripts without a network, then serve.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username=postgres --pwfile="$POSTGRES_PASSWORD_FILE" --no-sync
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    pg_ctl -w -o "-c listen_addresses=''" start
    for script in /docker-entrypoint-initdb.d/*.sql; do
        psql -v ON_ERROR_STOP=1 --no-password --no-psqlrc --username postgres --dbname postgres -f "$script"
    done
    pg_ctl -w -m fast stop
fi
exec postgres -c listen_addresses='*'
