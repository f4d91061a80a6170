BEGIN TRANSACTION;
CREATE TABLE "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
);
INSERT INTO "_sqlite_migrations" VALUES(1,'learning','m001_generations','2026-11-30 03:44:17.351143+00:00');
CREATE TABLE "capacities" (
   "fingerprint" TEXT PRIMARY KEY NOT NULL,
   "pool_bytes" TEXT NOT NULL,
   "gpu" TEXT NOT NULL
);
INSERT INTO "capacities" VALUES('abababababababababababababababababababababababababababababababab','[800]','[0, 0]');
CREATE TABLE "generations" (
   "fingerprint" TEXT NOT NULL,
   "generation" INTEGER NOT NULL,
   "created_at" REAL NOT NULL,
   "source" TEXT NOT NULL,
   "state" TEXT NOT NULL,
   "sessions" INTEGER NOT NULL,
   "hot_experts" INTEGER NOT NULL,
   "moved" INTEGER NOT NULL,
   "coverage_held_out" REAL,
   "coverage_measured" REAL,
   "tpot_ms_measured" REAL,
   "sessions_measured" INTEGER NOT NULL,
   "note" TEXT NOT NULL,
   "origin" INTEGER,
   "residency" BLOB NOT NULL,
   PRIMARY KEY ("fingerprint", "generation")
);
INSERT INTO "generations" VALUES('abababababababababababababababababababababababababababababababab',1,1.0,'day0','superseded',0,4,4,NULL,0.5,12.5,3,'',NULL,X'4F5354524553494401000000580000008500000000000000ABABABABABABABABABABABABABABABABABABABABABABABABABABABABABABABAB01000000000000000100000000000000020000000400000011000000040000007B22736F75726365223A2264617930227D000000000200000000000200010000000200000000000200B4EEF318');
INSERT INTO "generations" VALUES('abababababababababababababababababababababababababababababababab',2,2.0,'learned','active',3,4,2,0.75,NULL,NULL,0,'',NULL,X'4F5354524553494401000000580000008800000000000000ABABABABABABABABABABABABABABABABABABABABABABABABABABABABABABABAB02000000000000000200000000000000020000000400000014000000040000007B22736F75726365223A226C6561726E6564227D0000000002000000020003000100000002000000020003009D8D2D53');
CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name");
COMMIT;
