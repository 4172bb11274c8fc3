PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO alembic_version VALUES('0008');
CREATE TABLE facts (
	name VARCHAR NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO facts VALUES('kind','measured');
CREATE TABLE environments (
	digest VARCHAR NOT NULL, 
	node VARCHAR NOT NULL, 
	slug VARCHAR NOT NULL, 
	facts TEXT NOT NULL, 
	first_seen FLOAT NOT NULL, 
	last_seen FLOAT NOT NULL, 
	PRIMARY KEY (digest)
);
INSERT INTO environments VALUES('87c2618aa238f884','lab','6.8.12/q9.2.0/kvm#87c2','{"accel": "kvm", "kernel": "6.8.12", "qemu": "9.2.0"}',1777593600.0,1777695960.0);
INSERT INTO environments VALUES('08f3604de8c3dda1','lab','6.11.0/q9.2.0/kvm#08f3','{"accel": "kvm", "kernel": "6.11.0", "qemu": "9.2.0"}',1777593720.0,1777593732.0);
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
INSERT INTO cycles VALUES('c1','lab','quick','wall',12,1795301221.8350861072,1795301221.9063289165);
INSERT INTO cycles VALUES('c2','lab','quick','wall',12,1795301221.908360958,NULL);
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
	reason TEXT NOT NULL, pass_number INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (uid), 
	FOREIGN KEY(cycle) REFERENCES cycles (uid), 
	FOREIGN KEY(environment) REFERENCES environments (digest)
);
INSERT INTO runs VALUES(1,'a','lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2','lab','local.virtio.raw.none','randread-4k-qd32','c1','87c2618aa238f884',1777593600.0,1777593612.0,'ok','',0);
INSERT INTO runs VALUES(2,'b','lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2','lab','local.virtio.raw.none','randread-4k-qd32','c1','87c2618aa238f884',1777593660.0,1777593672.0,'failed','why',0);
INSERT INTO runs VALUES(3,'c','lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2','lab','local.virtio.raw.none','randread-4k-qd32','c1','08f3604de8c3dda1',1777593720.0,1777593732.0,'ok','',2);
INSERT INTO runs VALUES(4,'lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2/1','lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2','lab','local.virtio.raw.none','randread-4k-qd32','c1','87c2618aa238f884',1777695948.0,1777695960.0,'ok','',0);
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
INSERT INTO samples VALUES(1,'bytes','read','',4096.0,'bytes');
INSERT INTO samples VALUES(1,'host_cpu','','qemu',0.5,'cores');
INSERT INTO samples VALUES(1,'iops','read','',1000.0,'iops');
INSERT INTO samples VALUES(3,'bytes','read','',4096.0,'bytes');
INSERT INTO samples VALUES(3,'host_cpu','','qemu',0.5,'cores');
INSERT INTO samples VALUES(3,'iops','read','',1000.0,'iops');
INSERT INTO samples VALUES(4,'clat_histogram','read','0.001',12.0,'operations');
INSERT INTO samples VALUES(4,'host_cpu','','qemu',0.5,'cores');
INSERT INTO samples VALUES(4,'iops','read','',9920.0,'iops');
CREATE TABLE evidence (
	run INTEGER NOT NULL, 
	name VARCHAR NOT NULL, 
	content BLOB NOT NULL, 
	PRIMARY KEY (run, name), 
	FOREIGN KEY(run) REFERENCES runs (id) ON DELETE CASCADE
);
INSERT INTO evidence VALUES(1,'output',X'789cab56caca4f2a56b252888ead05001a3c03fd');
INSERT INTO evidence VALUES(1,'note',X'789c732f3abce7f0fc54000f4f0400');
INSERT INTO evidence VALUES(2,'output',X'789cab56caca4f2a56b252888ead05001a3c03fd');
INSERT INTO evidence VALUES(2,'note',X'789c732f3abce7f0fc54000f4f0400');
INSERT INTO evidence VALUES(3,'output',X'789cab56caca4f2a56b252888ead05001a3c03fd');
INSERT INTO evidence VALUES(3,'note',X'789c732f3abce7f0fc54000f4f0400');
CREATE TABLE totals (
	node VARCHAR NOT NULL, 
	storage VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	value FLOAT NOT NULL, 
	PRIMARY KEY (node, storage, name)
);
INSERT INTO totals VALUES('lab','local','read',8192.0);
CREATE TABLE journal (
	id INTEGER NOT NULL, 
	opened FLOAT NOT NULL, 
	closed FLOAT, 
	kind VARCHAR NOT NULL, 
	details TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO journal VALUES(1,1795301221.9099841117,1795301221.9122364521,'volume','{"path": "/gone"}');
INSERT INTO journal VALUES(2,1795301221.9137864112,NULL,'vm','{"uuid": "left"}');
CREATE TABLE decisions (
	id INTEGER NOT NULL, 
	made FLOAT NOT NULL, 
	kind VARCHAR NOT NULL, 
	cases VARCHAR NOT NULL, 
	until FLOAT NOT NULL, 
	reason TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO decisions VALUES(1,1777593600.0,'accept','*',1777593600.0,'Grüße; it''s right');
CREATE TABLE cases (
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
	PRIMARY KEY ("key")
);
INSERT INTO cases VALUES('lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2','lab','local.virtio.raw.none','randread-4k-qd32','{"fingerprint": "e75966b79acc84a2", "labels": {"bus": "virtio", "cache": "none", "format": "raw", "node": "lab", "scenario": "local.virtio.raw.none", "storage": "local", "workload": "randread-4k-qd32"}, "scale": 1.0, "scenario": {"aio": "io_uring", "backing": "0", "bus": "virtio", "cache": "none", "cluster_size": "0", "cpus": "1", "detect_zeroes": "0", "discard": "0", "drive_cache": "", "extended_l2": "0", "file_bytes": "0", "file_name": "fio.dat", "filesystem": "none", "fill_compress": "0", "fill_passes": "1", "format": "raw", "iops": "0", "iothread": "0", "mbps": "0", "memory_bytes": "805306368", "mount_options": "", "preallocation": "metadata", "queues": "0", "read_ahead": "", "scheduler": "", "scsihw": "virtio-scsi-single", "ssd": "0", "volume_bytes": "268435456"}, "workload": {"caveats": [], "directions": ["read"], "parameters": {"bs": 4096, "fdatasync": 0, "fsync": 0, "iodepth": 32, "ioengine": "libaio", "numjobs": 1, "random_distribution": "random", "rate_iops": 0, "rw": "randread", "size": 0, "sync": false, "version": 1}, "ramp_seconds": 2.0, "runtime_seconds": 8.0, "slug": "randread-4k-qd32", "title": "randread 4k qd32", "tool": "fio"}}',1777593600.0,1777695960.0,4,1777695960.0,4,0);
CREATE TABLE case_outcomes (
	case_key VARCHAR NOT NULL, 
	outcome VARCHAR NOT NULL, 
	count INTEGER NOT NULL, 
	PRIMARY KEY (case_key, outcome)
);
INSERT INTO case_outcomes VALUES('lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2','failed',1);
INSERT INTO case_outcomes VALUES('lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2','ok',3);
CREATE TABLE episodes (
	id INTEGER NOT NULL, 
	node VARCHAR NOT NULL, 
	environment VARCHAR NOT NULL, 
	started FLOAT NOT NULL, 
	finished FLOAT NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(environment) REFERENCES environments (digest)
);
INSERT INTO episodes VALUES(1,'lab','87c2618aa238f884',1777593600.0,1777593612.0);
INSERT INTO episodes VALUES(2,'lab','08f3604de8c3dda1',1777593720.0,1777593732.0);
INSERT INTO episodes VALUES(3,'lab','87c2618aa238f884',1777695948.0,1777695960.0);
CREATE TABLE changes (
	id VARCHAR NOT NULL, 
	since FLOAT NOT NULL, 
	worse INTEGER NOT NULL, 
	slow INTEGER NOT NULL, 
	severity VARCHAR NOT NULL, 
	cases TEXT NOT NULL, 
	text TEXT NOT NULL, 
	missing FLOAT, 
	ended FLOAT, 
	ending VARCHAR NOT NULL, 
	told VARCHAR NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO changes VALUES('c1',1777600000.0,1,0,'warning','["lab/a/b/0"]','a got slower',NULL,NULL,'','open');
CREATE TABLE messages (
	id INTEGER NOT NULL, 
	about VARCHAR NOT NULL, 
	target VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	title TEXT NOT NULL, 
	body TEXT NOT NULL, 
	made FLOAT NOT NULL, 
	due FLOAT NOT NULL, 
	attempts INTEGER NOT NULL, 
	begun FLOAT, 
	reason TEXT NOT NULL, 
	state VARCHAR NOT NULL, 
	done FLOAT, 
	PRIMARY KEY (id), 
	CONSTRAINT told_once UNIQUE (about, target)
);
INSERT INTO messages VALUES(1,'c1','mail','changed','slower','a got slower',1777600100.0,1777600100.0,0,NULL,'','queued',NULL);
CREATE TABLE case_sums (
	case_key VARCHAR NOT NULL, 
	metric VARCHAR NOT NULL, 
	direction VARCHAR NOT NULL, 
	part VARCHAR NOT NULL, 
	value FLOAT NOT NULL, 
	PRIMARY KEY (case_key, metric, direction, part)
);
INSERT INTO case_sums VALUES('lab/local.virtio.raw.none/randread-4k-qd32/e75966b79acc84a2','clat_histogram','read','0.001',12.0);
CREATE TABLE number_blocks (
	block INTEGER NOT NULL, 
	form TEXT NOT NULL, 
	layout BLOB NOT NULL, 
	content BLOB NOT NULL, 
	checksum INTEGER NOT NULL, 
	PRIMARY KEY (block)
);
INSERT INTO number_blocks VALUES(0,'[1, "little", ["ok", "noisy", "not_steady"], ["iops", "read", ""], ["iops", "write", ""], ["iops", "trim", ""], ["clat_percentile", "read", "99"], ["clat_percentile", "write", "99"], ["clat_percentile", "trim", "99"], ["clat_max", "read", ""], ["clat_max", "write", ""], ["clat_max", "trim", ""], ["host_cpu", "", "qemu"], ["host_cpu", "", "total"], ["boot_time", "", ""]]',X'7b22656e7669726f6e6d656e7473223a205b2230386633363034646538633364646131222c202238376332363138616132333866383834225d2c20226361736573223a205b5b226c61622f6c6f63616c2e76697274696f2e7261772e6e6f6e652f72616e64726561642d346b2d716433322f65373539363662373961636338346132222c20332c205b302c20395d5d5d7d',X'01000000000000000300000000000000040000000000000000000043fb7cda4100000061fb7cda41000000365f7dda410100000001000101010000000000408f400000000000408f40000000000060c340000000000000e03f000000000000e03f000000000000e03f',2767507972);
CREATE INDEX runs_of_case ON runs (case_key, finished);
CREATE INDEX runs_by_time ON runs (finished);
CREATE INDEX episodes_of_node ON episodes (node);
CREATE INDEX runs_not_ok ON runs (finished) WHERE outcome != 'ok';
CREATE TRIGGER run_added AFTER INSERT ON runs BEGIN DELETE FROM number_blocks WHERE block = (NEW.id - 1) / 50000; END;
CREATE TRIGGER run_changed AFTER UPDATE ON runs BEGIN DELETE FROM number_blocks WHERE block = (OLD.id - 1) / 50000; END;
CREATE TRIGGER run_renumbered AFTER UPDATE OF id ON runs BEGIN DELETE FROM number_blocks WHERE block = (NEW.id - 1) / 50000; END;
CREATE TRIGGER run_removed AFTER DELETE ON runs BEGIN DELETE FROM number_blocks WHERE block = (OLD.id - 1) / 50000; END;
CREATE TRIGGER run_replaced BEFORE INSERT ON runs BEGIN DELETE FROM number_blocks WHERE block = ((SELECT id FROM runs WHERE uid = NEW.uid) - 1) / 50000; END;
CREATE TRIGGER run_renamed BEFORE UPDATE OF uid ON runs BEGIN DELETE FROM number_blocks WHERE block = ((SELECT id FROM runs WHERE uid = NEW.uid) - 1) / 50000; END;
CREATE TRIGGER sample_added AFTER INSERT ON samples BEGIN DELETE FROM number_blocks WHERE block = (NEW.run - 1) / 50000; END;
CREATE TRIGGER sample_changed AFTER UPDATE ON samples BEGIN DELETE FROM number_blocks WHERE block = (OLD.run - 1) / 50000; END;
CREATE TRIGGER sample_moved AFTER UPDATE OF run ON samples BEGIN DELETE FROM number_blocks WHERE block = (NEW.run - 1) / 50000; END;
CREATE TRIGGER sample_removed AFTER DELETE ON samples BEGIN DELETE FROM number_blocks WHERE block = (OLD.run - 1) / 50000; END;
COMMIT;
