BEGIN TRANSACTION;
CREATE TABLE "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
);
INSERT INTO "_sqlite_migrations" VALUES(1,'routing-log','m001_sessions_and_requests','2026-11-30 03:41:13.815986+00:00');
INSERT INTO "_sqlite_migrations" VALUES(2,'routing-log','m002_uploaded_bytes','2026-11-30 03:41:13.820998+00:00');
CREATE TABLE "models" (
   "id" INTEGER PRIMARY KEY,
   "fingerprint" TEXT NOT NULL
);
INSERT INTO "models" VALUES(1,'abababababababababababababababababababababababababababababababab');
CREATE TABLE "request_counts" (
   "number" INTEGER PRIMARY KEY,
   "prefill" BLOB NOT NULL,
   "decode" BLOB NOT NULL
);
INSERT INTO "request_counts" VALUES(1,X'785E63646260610001460617111100016F0075',X'785E636462606100014606172E2E0001510061');
INSERT INTO "request_counts" VALUES(2,X'785E63646260610001460617111100016F0075',X'785E636462606100014606172E2E0001510061');
CREATE TABLE "requests" (
   "number" INTEGER PRIMARY KEY,
   "id" TEXT NOT NULL,
   "model_id" INTEGER NOT NULL REFERENCES "models"("id"),
   "session" TEXT,
   "turn" INTEGER,
   "kind" TEXT NOT NULL,
   "dialect" TEXT NOT NULL,
   "status" TEXT NOT NULL,
   "started_at" REAL NOT NULL,
   "queue_ms" REAL,
   "ttft_ms" REAL,
   "tpot_ms" REAL,
   "total_ms" REAL NOT NULL,
   "new_tokens" INTEGER,
   "reused_tokens" INTEGER,
   "output_tokens" INTEGER,
   "break_reason" TEXT,
   "break_message" INTEGER,
   "lost_tokens" INTEGER,
   "generation" INTEGER,
   "path" TEXT,
   "routes_prefill" INTEGER,
   "routes_decode" INTEGER,
   "cold_routes" INTEGER,
   "coverage_prefill" REAL,
   "coverage_decode" REAL
, "uploaded_bytes" INTEGER);
INSERT INTO "requests" VALUES(1,'req-000000000001',1,'5e55104e00000001',1,'after_tool','openai','ok',1.0,1.0,100.0,10.0,1000.0,10,90,5,NULL,NULL,NULL,NULL,'split',40,20,NULL,NULL,NULL,0);
INSERT INTO "requests" VALUES(2,'req-000000000002',1,'5e55104e00000001',2,'after_tool','openai','ok',2.0,1.0,100.0,10.0,1000.0,10,90,5,'system',NULL,40,3,'choice',40,20,12,0.8,0.8,4096);
INSERT INTO "requests" VALUES(3,'req-000000000003',1,'5e55104e00000001',NULL,'side','openai','cancelled',3.0,1.0,100.0,10.0,1000.0,10,90,5,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE "sessions" (
   "id" INTEGER PRIMARY KEY,
   "model_id" INTEGER NOT NULL REFERENCES "models"("id"),
   "session" TEXT NOT NULL,
   "source" TEXT NOT NULL,
   "stands_for" INTEGER NOT NULL,
   "started_at" REAL NOT NULL,
   "last_at" REAL NOT NULL,
   "turns" INTEGER NOT NULL,
   "requests" INTEGER NOT NULL,
   "new_tokens" INTEGER,
   "reused_tokens" INTEGER,
   "output_tokens" INTEGER,
   "prefill" BLOB,
   "decode" BLOB
);
INSERT INTO "sessions" VALUES(1,1,'5e55104e00000001','header',1,1.0,3.0,2,2,20,180,10,X'785E636462606100014606170D0D0001AB009D',X'785E63646260610001460617111100016F0075');
CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name");
CREATE UNIQUE INDEX "idx_models_fingerprint"
    ON "models" ("fingerprint");
CREATE UNIQUE INDEX "idx_sessions_model_id_session"
    ON "sessions" ("model_id", "session");
CREATE INDEX "idx_sessions_last_at"
    ON "sessions" ("last_at");
CREATE UNIQUE INDEX "idx_requests_id"
    ON "requests" ("id");
CREATE INDEX "idx_requests_model_id_session"
    ON "requests" ("model_id", "session");
COMMIT;
