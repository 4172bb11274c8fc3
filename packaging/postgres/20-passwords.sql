-- For the first start of the compose service hub-postgres, whose clients come over a network.
\set owner `cat /run/pvebench/owner/password`
\set door `cat /run/pvebench/door/password`
\set judge `cat /run/pvebench/judge/password`
\set overview `cat /run/pvebench/overview/password`
ALTER ROLE pvebench_hub PASSWORD :'owner';
ALTER ROLE pvebench_door PASSWORD :'door';
ALTER ROLE pvebench_judge PASSWORD :'judge';
ALTER ROLE pvebench_overview PASSWORD :'overview';
REVOKE CONNECT ON DATABASE postgres FROM PUBLIC;
-- The superuser only logs in inside the container.
ALTER ROLE postgres PASSWORD NULL;
