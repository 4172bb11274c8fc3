BEGIN TRANSACTION;
CREATE TABLE case_outcomes (
	case_key VARCHAR NOT NULL, 
	outcome VARCHAR NOT NULL, 
	count INTEGER NOT NULL, 
	PRIMARY KEY (case_key, outcome)
);
INSERT INTO "case_outcomes" VALUES('lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2','ok',2);
INSERT INTO "case_outcomes" VALUES('lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2','failed',1);
CREATE TABLE case_sums (
	case_key VARCHAR NOT NULL, 
	metric VARCHAR NOT NULL, 
	direction VARCHAR NOT NULL, 
	part VARCHAR NOT NULL, 
	value FLOAT NOT NULL, 
	PRIMARY KEY (case_key, metric, direction, part)
);
INSERT INTO "case_sums" VALUES('lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2','clat_histogram','read','0.001',24.0);
CREATE TABLE cases (
	id INTEGER NOT NULL, 
	"key" VARCHAR NOT NULL, 
	node VARCHAR NOT NULL, 
	scenario VARCHAR NOT NULL, 
	workload VARCHAR NOT NULL, 
	definition TEXT NOT NULL, 
	first_started FLOAT NOT NULL, 
	last_finished FLOAT NOT NULL, 
	last_run INTEGER NOT NULL, 
	good_finished FLOAT, 
	good_run INTEGER, 
	failures_in_row INTEGER NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE ("key")
);
INSERT INTO "cases" VALUES(1,'lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2','lab','local.virtio.raw.none','randread-4k-qd32','{"fingerprint": "e75966b79acc84a2", "labels": {"bus": "virtio", "cache": "none", "format": "raw", "node": "lab", "scenario": "local.virtio.raw.none", "storage": "local", "workload": "randread-4k-qd32"}, "scale": 1.0, "scenario": {"aio": "io_uring", "backing": "0", "bus": "virtio", "cache": "none", "chain": "0", "chain_kind": "volume", "cluster_size": "0", "compression": "", "cpus": "1", "detect_zeroes": "0", "discard": "0", "drive_cache": "", "extended_l2": "0", "file_bytes": "0", "file_name": "fio.dat", "filesystem": "none", "fill_compress": "0", "fill_passes": "1", "format": "raw", "iops": "0", "iothread": "0", "mbps": "0", "memory_bytes": "805306368", "mount_options": "", "overlay_cluster": "0", "preallocation": "metadata", "primarycache": "", "queues": "0", "read_ahead": "", "recordsize": "", "scheduler": "", "scsihw": "virtio-scsi-single", "ssd": "0", "sync": "", "thin_chunk": "", "volblocksize": "", "volume_bytes": "268435456"}, "workload": {"caveats": [], "directions": ["read"], "parameters": {"bs": 4096, "fdatasync": 0, "fsync": 0, "iodepth": 32, "ioengine": "libaio", "numjobs": 1, "random_distribution": "random", "rate_iops": 0, "rw": "randread", "size": 0, "sync": false, "version": 1}, "ramp_seconds": 2.0, "runtime_seconds": 8.0, "slug": "randread-4k-qd32", "title": "randread 4k qd32", "tool": "fio"}}',1777593600.0,1777593732.0,3,1777593732.0,3,0);
CREATE TABLE changes (
	id VARCHAR NOT NULL, 
	since FLOAT NOT NULL, 
	worse INTEGER NOT NULL, 
	gradual INTEGER NOT NULL, 
	severity VARCHAR NOT NULL, 
	cases TEXT NOT NULL, 
	text TEXT NOT NULL, 
	missing FLOAT, 
	ended FLOAT, 
	ending VARCHAR NOT NULL, 
	notified VARCHAR NOT NULL, 
	notified_at FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "changes" VALUES('c1',1777593600.0,1,0,'warning','["lab/a/b/0"]','a is slower',NULL,NULL,'','open',1777593600.0);
CREATE TABLE cycles (
	uid VARCHAR NOT NULL, 
	node VARCHAR NOT NULL, 
	pack VARCHAR NOT NULL, 
	tier VARCHAR NOT NULL, 
	planned INTEGER NOT NULL, 
	started FLOAT NOT NULL, 
	finished FLOAT, 
	PRIMARY KEY (uid)
);
INSERT INTO "cycles" VALUES('c1','lab','quick','wall',12,1795814368.33297,1.79581436847487592696e+09);
INSERT INTO "cycles" VALUES('c2','lab','quick','wall',12,1.79581436833547091486e+09,NULL);
CREATE TABLE decisions (
	id INTEGER NOT NULL, 
	made FLOAT NOT NULL, 
	kind VARCHAR NOT NULL, 
	cases VARCHAR NOT NULL, 
	until FLOAT NOT NULL, 
	reason TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "decisions" VALUES(1,1777593600.0,'accept','*',1777593600.0,'Grüße; it''s right');
CREATE TABLE environment_periods (
	id INTEGER NOT NULL, 
	node VARCHAR NOT NULL, 
	environment VARCHAR NOT NULL, 
	started FLOAT NOT NULL, 
	finished FLOAT NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(environment) REFERENCES environments (digest)
);
INSERT INTO "environment_periods" VALUES(1,'lab','87c2618aa238f884',1777593600.0,1777593612.0);
INSERT INTO "environment_periods" VALUES(2,'lab','08f3604de8c3dda1',1777593720.0,1777593732.0);
CREATE TABLE environments (
	digest VARCHAR NOT NULL, 
	node VARCHAR NOT NULL, 
	slug VARCHAR NOT NULL, 
	facts TEXT NOT NULL, 
	first_seen FLOAT NOT NULL, 
	last_seen FLOAT NOT NULL, 
	PRIMARY KEY (digest)
);
INSERT INTO "environments" VALUES('87c2618aa238f884','lab','6.8.12/q9.2.0/kvm#87c2','{"accel": "kvm", "kernel": "6.8.12", "qemu": "9.2.0"}',1777593600.0,1777593672.0);
INSERT INTO "environments" VALUES('08f3604de8c3dda1','lab','6.11.0/q9.2.0/kvm#08f3','{"accel": "kvm", "kernel": "6.11.0", "qemu": "9.2.0"}',1777593720.0,1777593732.0);
CREATE TABLE evidence (
	run INTEGER NOT NULL, 
	name VARCHAR NOT NULL, 
	content BLOB NOT NULL, 
	PRIMARY KEY (run, name), 
	FOREIGN KEY(run) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO "evidence" VALUES(1,'output',X'789CAB56CACA4F2A56B252888EAD05001A3C03FD');
INSERT INTO "evidence" VALUES(1,'note',X'789C732F3ABCE7F0FC54000F4F0400');
INSERT INTO "evidence" VALUES(2,'output',X'789CAB56CACA4F2A56B252888EAD05001A3C03FD');
INSERT INTO "evidence" VALUES(2,'note',X'789C732F3ABCE7F0FC54000F4F0400');
INSERT INTO "evidence" VALUES(3,'output',X'789CAB56CACA4F2A56B252888EAD05001A3C03FD');
INSERT INTO "evidence" VALUES(3,'note',X'789C732F3ABCE7F0FC54000F4F0400');
CREATE TABLE facts (
	name VARCHAR NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "facts" VALUES('kind','measured');
CREATE TABLE fleet_log (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	kind VARCHAR NOT NULL, 
	"key" VARCHAR NOT NULL, 
	revision INTEGER NOT NULL, 
	nonce BLOB DEFAULT (randomblob(8)) NOT NULL
);
INSERT INTO "fleet_log" VALUES(1,'environment','87c2618aa238f884',0,X'5C5C83FBE9301574');
INSERT INTO "fleet_log" VALUES(2,'environment','08f3604de8c3dda1',0,X'A78D62BF6E7D5C8A');
INSERT INTO "fleet_log" VALUES(3,'cycle','c1',0,X'C376A1072A284621');
INSERT INTO "fleet_log" VALUES(4,'cycle','c2',0,X'05349F1554A440C2');
INSERT INTO "fleet_log" VALUES(5,'definition','lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2',0,X'970E83DECBFC1E0D');
INSERT INTO "fleet_log" VALUES(6,'decision','1',0,X'201F77E2B79035A8');
INSERT INTO "fleet_log" VALUES(7,'run','a',0,X'3696282D5CCA4CD3');
INSERT INTO "fleet_log" VALUES(8,'run','b',0,X'2BD38173B440A585');
INSERT INTO "fleet_log" VALUES(9,'run','c',0,X'4FA08EB1AC854D07');
CREATE TABLE fleet_marks (
	seq INTEGER NOT NULL, 
	chain VARCHAR NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (seq)
);
INSERT INTO "fleet_marks" VALUES(0,'',0.0);
CREATE TABLE fleet_position (
	id INTEGER NOT NULL, 
	seq INTEGER NOT NULL, 
	chain VARCHAR NOT NULL, 
	contact FLOAT, 
	state VARCHAR NOT NULL, 
	process VARCHAR NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "fleet_position" VALUES(1,0,'',NULL,'not connected','');
CREATE TABLE journal (
	id INTEGER NOT NULL, 
	opened FLOAT NOT NULL, 
	closed FLOAT, 
	kind VARCHAR NOT NULL, 
	details TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "journal" VALUES(1,1.79581436847635293003e+09,1.79581436847764635078e+09,'volume','{"path": "/gone"}');
INSERT INTO "journal" VALUES(2,1.79581436848652887345e+09,NULL,'vm','{"uuid": "left"}');
CREATE TABLE messages (
	id INTEGER NOT NULL, 
	kind VARCHAR NOT NULL, 
	node VARCHAR NOT NULL, 
	last_run FLOAT NOT NULL, 
	title TEXT NOT NULL, 
	body TEXT NOT NULL, 
	receiver VARCHAR NOT NULL, 
	made FLOAT NOT NULL, 
	due FLOAT NOT NULL, 
	attempts INTEGER NOT NULL, 
	reason TEXT NOT NULL, 
	state VARCHAR NOT NULL, 
	done FLOAT, 
	PRIMARY KEY (id)
);
INSERT INTO "messages" VALUES(1,'changed','',0.0,'slower','a is slower','mail',0.0,0.0,0,'','queued',NULL);
CREATE TABLE run_numbers (
	case_id INTEGER NOT NULL, 
	run INTEGER NOT NULL, 
	finished FLOAT NOT NULL, 
	environment VARCHAR NOT NULL, 
	ok INTEGER NOT NULL, 
	iops_read FLOAT, 
	iops_write FLOAT, 
	iops_trim FLOAT, 
	clat_max_read FLOAT, 
	clat_max_write FLOAT, 
	clat_max_trim FLOAT, 
	operation_gap FLOAT, 
	operation_time FLOAT, 
	boot_time FLOAT, 
	clat_percentile_read_99 FLOAT, 
	clat_percentile_write_99 FLOAT, 
	clat_percentile_trim_99 FLOAT, 
	host_cpu_qemu FLOAT, 
	host_cpu_total FLOAT, 
	PRIMARY KEY (case_id, run)
)
 WITHOUT ROWID

;
INSERT INTO "run_numbers" VALUES(1,1,1777593612.0,'87c2618aa238f884',1,1000.0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0.5,NULL);
INSERT INTO "run_numbers" VALUES(1,3,1777593732.0,'08f3604de8c3dda1',1,1000.0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0.5,NULL);
CREATE TABLE runs (
	id INTEGER NOT NULL, 
	uid VARCHAR NOT NULL, 
	case_key VARCHAR NOT NULL, 
	node VARCHAR NOT NULL, 
	scenario VARCHAR NOT NULL, 
	workload VARCHAR NOT NULL, 
	cycle VARCHAR NOT NULL, 
	environment VARCHAR NOT NULL, 
	started FLOAT NOT NULL, 
	finished FLOAT NOT NULL, 
	outcome VARCHAR NOT NULL, 
	reason TEXT NOT NULL, 
	pass_number INTEGER NOT NULL, 
	revision INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (uid), 
	FOREIGN KEY(cycle) REFERENCES cycles (uid), 
	FOREIGN KEY(environment) REFERENCES environments (digest)
);
INSERT INTO "runs" VALUES(1,'a','lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2','lab','local.virtio.raw.none','randread-4k-qd32','c1','87c2618aa238f884',1777593600.0,1777593612.0,'ok','',1,0);
INSERT INTO "runs" VALUES(2,'b','lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2','lab','local.virtio.raw.none','randread-4k-qd32','c1','87c2618aa238f884',1777593660.0,1777593672.0,'failed','why',1,0);
INSERT INTO "runs" VALUES(3,'c','lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2','lab','local.virtio.raw.none','randread-4k-qd32','c1','08f3604de8c3dda1',1777593720.0,1777593732.0,'ok','',1,0);
CREATE TABLE samples (
	run INTEGER NOT NULL, 
	metric VARCHAR NOT NULL, 
	direction VARCHAR NOT NULL, 
	part VARCHAR NOT NULL, 
	value FLOAT NOT NULL, 
	unit VARCHAR NOT NULL, 
	PRIMARY KEY (run, metric, direction, part), 
	FOREIGN KEY(run) REFERENCES runs (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
INSERT INTO "samples" VALUES(1,'bytes','read','',4096.0,'bytes');
INSERT INTO "samples" VALUES(1,'clat_histogram','read','0.001',12.0,'operations');
INSERT INTO "samples" VALUES(1,'host_cpu','','qemu',0.5,'cores');
INSERT INTO "samples" VALUES(1,'iops','read','',1000.0,'iops');
INSERT INTO "samples" VALUES(3,'bytes','read','',4096.0,'bytes');
INSERT INTO "samples" VALUES(3,'clat_histogram','read','0.001',12.0,'operations');
INSERT INTO "samples" VALUES(3,'host_cpu','','qemu',0.5,'cores');
INSERT INTO "samples" VALUES(3,'iops','read','',1000.0,'iops');
CREATE TABLE storage_identities (
	id INTEGER NOT NULL, 
	node VARCHAR NOT NULL, 
	storage VARCHAR NOT NULL, 
	facts TEXT NOT NULL, 
	since FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "storage_identities" VALUES(1,'lab','local','{"fs": "0123"}',1.79581436851198291779e+09);
CREATE TABLE totals (
	node VARCHAR NOT NULL, 
	storage VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	value FLOAT NOT NULL, 
	PRIMARY KEY (node, storage, name)
);
INSERT INTO "totals" VALUES('lab','local','read',8192.0);
INSERT INTO "totals" VALUES('lab','local','written 2026-05-01T00',0.0);
INSERT INTO "totals" VALUES('lab','local','successful_bytes 2026-05-01T00',0.0);
INSERT INTO "totals" VALUES('lab','local','successful 2026-05-01T00',2.0);
CREATE INDEX runs_by_time ON runs (finished);
CREATE INDEX runs_of_case ON runs (case_key, finished);
CREATE INDEX runs_not_ok ON runs (finished) WHERE outcome != 'ok';
CREATE INDEX environment_periods_of_node ON environment_periods (node);
CREATE TRIGGER fleet_first_run BEFORE INSERT ON runs WHEN EXISTS (SELECT 1 FROM fleet_position) AND NOT EXISTS (SELECT 1 FROM runs WHERE case_key = NEW.case_key) BEGIN INSERT INTO fleet_log (kind, key, revision) VALUES ('definition', NEW.case_key, 0); END;
CREATE TRIGGER fleet_run AFTER INSERT ON runs WHEN EXISTS (SELECT 1 FROM fleet_position) AND TRUE BEGIN INSERT INTO fleet_log (kind, key, revision) VALUES ('run', NEW.uid, NEW.revision); END;
CREATE TRIGGER fleet_correction AFTER UPDATE OF revision ON runs WHEN EXISTS (SELECT 1 FROM fleet_position) AND TRUE BEGIN INSERT INTO fleet_log (kind, key, revision) VALUES ('run', NEW.uid, NEW.revision); END;
CREATE TRIGGER fleet_definition AFTER UPDATE OF definition ON cases WHEN EXISTS (SELECT 1 FROM fleet_position) AND OLD.definition IS NOT NEW.definition BEGIN INSERT INTO fleet_log (kind, key, revision) VALUES ('definition', NEW.key, 0); END;
CREATE TRIGGER fleet_environment AFTER INSERT ON environments WHEN EXISTS (SELECT 1 FROM fleet_position) AND TRUE BEGIN INSERT INTO fleet_log (kind, key, revision) VALUES ('environment', NEW.digest, 0); END;
CREATE TRIGGER fleet_cycle AFTER INSERT ON cycles WHEN EXISTS (SELECT 1 FROM fleet_position) AND TRUE BEGIN INSERT INTO fleet_log (kind, key, revision) VALUES ('cycle', NEW.uid, 0); END;
CREATE TRIGGER fleet_cycle_end AFTER UPDATE OF finished ON cycles WHEN EXISTS (SELECT 1 FROM fleet_position) AND TRUE BEGIN INSERT INTO fleet_log (kind, key, revision) VALUES ('cycle', NEW.uid, 0); END;
CREATE TRIGGER fleet_decision AFTER INSERT ON decisions WHEN EXISTS (SELECT 1 FROM fleet_position) AND TRUE BEGIN INSERT INTO fleet_log (kind, key, revision) VALUES ('decision', NEW.id, 0); END;
CREATE TRIGGER run_removed AFTER DELETE ON runs BEGIN DELETE FROM run_numbers WHERE case_id = (SELECT id FROM cases WHERE key = OLD.case_key) AND run = OLD.id; END;
CREATE TRIGGER run_changed AFTER UPDATE ON runs BEGIN DELETE FROM run_numbers WHERE case_id = (SELECT id FROM cases WHERE key = OLD.case_key) AND run = OLD.id; INSERT OR REPLACE INTO run_numbers SELECT cases.id, runs.id, runs.finished, runs.environment, runs.outcome = 'ok', (SELECT value FROM samples WHERE run = runs.id AND metric = 'iops' AND direction = 'read' AND part = ''), (SELECT value FROM samples WHERE run = runs.id AND metric = 'iops' AND direction = 'write' AND part = ''), (SELECT value FROM samples WHERE run = runs.id AND metric = 'iops' AND direction = 'trim' AND part = ''), (SELECT value FROM samples WHERE run = runs.id AND metric = 'clat_max' AND direction = 'read' AND part = ''), (SELECT value FROM samples WHERE run = runs.id AND metric = 'clat_max' AND direction = 'write' AND part = ''), (SELECT value FROM samples WHERE run = runs.id AND metric = 'clat_max' AND direction = 'trim' AND part = ''), (SELECT value FROM samples WHERE run = runs.id AND metric = 'operation_gap' AND direction = '' AND part = ''), (SELECT value FROM samples WHERE run = runs.id AND metric = 'operation_time' AND direction = '' AND part = ''), (SELECT value FROM samples WHERE run = runs.id AND metric = 'boot_time' AND direction = '' AND part = ''), (SELECT value FROM samples WHERE run = runs.id AND metric = 'clat_percentile' AND direction = 'read' AND part = '99'), (SELECT value FROM samples WHERE run = runs.id AND metric = 'clat_percentile' AND direction = 'write' AND part = '99'), (SELECT value FROM samples WHERE run = runs.id AND metric = 'clat_percentile' AND direction = 'trim' AND part = '99'), (SELECT value FROM samples WHERE run = runs.id AND metric = 'host_cpu' AND direction = '' AND part = 'qemu'), (SELECT value FROM samples WHERE run = runs.id AND metric = 'host_cpu' AND direction = '' AND part = 'total') FROM runs JOIN cases ON cases.key = runs.case_key WHERE runs.outcome IN ('ok', 'noisy', 'not_steady') AND runs.id = NEW.id ORDER BY 1, 2; END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('fleet_log',9);
COMMIT;
PRAGMA user_version = 1;
