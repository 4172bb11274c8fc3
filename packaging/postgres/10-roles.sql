-- The owner of the hub's database, and a login for each of its processes; none is a superuser. What is there stays.
-- `pvebench hub migrate` gives them their rights. For Debian's package and for the compose stack.
SELECT format('CREATE ROLE %I %s', role, rights)
FROM (VALUES
    ('pvebench_hub', 'LOGIN CREATEROLE'),
    ('pvebench_door', 'LOGIN'), ('pvebench_judge', 'LOGIN'), ('pvebench_overview', 'LOGIN'),
    ('pvebench_pages', 'NOLOGIN')
) AS needed (role, rights)
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) \gexec
GRANT pvebench_door, pvebench_judge, pvebench_overview, pvebench_pages TO pvebench_hub WITH ADMIN OPTION;
SELECT 'CREATE DATABASE pvebench OWNER pvebench_hub'
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'pvebench') \gexec
